"""What the ranks after the first do: whatever rank 0 commands, until it says stop.

See `ranks` for the picture. A step that is refused because a number is not finite is refused alike on every rank, so a
follower waits for the next command; rank 0 decides what becomes of the run.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor

from hetero_rl.errors import NonFiniteError, ProtocolError
from hetero_rl.estimators import RecordedBatch
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.ranks import Ranks
from hetero_rl.trainer.sharding import served_tensors, whole
from hetero_rl.trainer.shards import write_own_shards
from hetero_rl.trainer.state import gather_state
from hetero_rl.trainer.step import Learner, StepResult

__all__ = ["LeadingLearner", "follow"]


class LeadingLearner(Learner):
    """The learner of rank 0: tells the other ranks before it does its own part."""

    def step(self, batch: TrainingBatch, recorded: RecordedBatch) -> StepResult:
        """As `Learner.step`, on all ranks."""
        ranks = self._ranks
        if ranks is not None:
            facts, columns = _packed(batch, recorded)
            ranks.command("step", facts, **columns)
        return super().step(batch, recorded)

    def stop(self) -> None:
        """Lets the other ranks go."""
        if self._ranks is not None:
            self._ranks.command("stop")


def follow(learner: Learner, ranks: Ranks) -> None:
    """Does what rank 0 commands until it says stop; raises ProtocolError for a command that is not known."""
    while True:
        name, facts, columns = ranks.next_command()
        if name == "stop":
            return
        if name == "step":
            with contextlib.suppress(NonFiniteError):
                learner.step(*_unpacked(facts, columns))
        elif name == "snapshot":
            for named in served_tensors(learner.policy, base=facts["base"]):
                whole(named.tensor.detach())
        elif name == "state":
            gather_state(learner.policy, learner.optimizer)
        elif name == "shards":
            with contextlib.suppress(OSError):  # rank 0 is told of it and decides
                write_own_shards(learner.policy, learner.optimizer, Path(facts["directory"]))
        else:
            raise ProtocolError(
                f"rank 0 commands {name!r}, which this version does not know; install one version everywhere"
            )


_BATCH_COLUMNS = tuple(field.name for field in dataclasses.fields(TrainingBatch) if field.type is Tensor)


def _packed(batch: TrainingBatch, recorded: RecordedBatch) -> tuple[dict[str, object], dict[str, Tensor]]:
    """A batch as JSON and tensors."""
    facts: dict[str, object] = {
        "step": batch.step,
        "group_ids": batch.group_ids,
        "sample_indices": batch.sample_indices,
        "backends": batch.backends,
        "group_size": recorded.group_size,
        "max_new_tokens": recorded.max_new_tokens,
    }
    columns: dict[str, Tensor] = {name: getattr(batch, name) for name in _BATCH_COLUMNS}
    if recorded.old_log_probs is not None:
        columns["old_log_probs"] = recorded.old_log_probs
    return facts, columns


def _unpacked(facts: dict[str, Any], columns: dict[str, Any]) -> tuple[TrainingBatch, RecordedBatch]:
    from hetero_rl.trainer.step import record

    old = columns.pop("old_log_probs", None)
    group_size, longest = facts.pop("group_size"), facts.pop("max_new_tokens")
    lists: dict[str, Any] = {name: tuple(facts[name]) for name in ("group_ids", "sample_indices", "backends")}
    batch = TrainingBatch(step=facts["step"], **lists, **columns)
    recorded = record(
        batch,
        group_size=group_size,
        max_new_tokens=longest,
        old_log_probs=old,
    )
    return batch, recorded
