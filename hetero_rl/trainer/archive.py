"""pi_old: the trainer's own evaluation of the weights that sampled a token, to split log W exactly.

    log W = log(pi / mu) = log(pi / pi_old)  +  log(pi_old / mu)
                            staleness            chip

pi_old is computed with the published, rounded numbers of the very version that sampled each token, so the chip part
is arithmetic alone: same weights, other hardware or kernels. The staleness part holds the optimizer steps since, and
the rounding of the served copy. Versions published before a restart are not at hand; their sequences stay unsplit.
"""

from typing import Literal

import torch
from torch import Tensor

from hetero_rl.estimators.batch import token_positions
from hetero_rl.estimators.stages.level import segment_sum
from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.log_probs import completion_log_probs
from hetero_rl.trainer.micro_batches import flat, plan_micro_batches
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.snapshots import Snapshot, SnapshotScorer

__all__ = ["VersionArchive", "split_log_ratio"]

SAMPLED_SHARE = 8
"""With "sampled", one sequence in this many is split."""


class VersionArchive:
    """Keeps the snapshots that tokens of coming batches may come from.

    Args:
        policy: The policy that is trained.
        mode: How many sequences are split.
        max_lag: Snapshots further from the current step are let go.
        tokens_per_micro_batch: Budget of one forward pass.
        temperature: The sampling temperature.
    """

    def __init__(
        self,
        policy: Policy,
        mode: Literal["never", "sampled", "always"],
        *,
        max_lag: int,
        tokens_per_micro_batch: int,
        temperature: float,
    ) -> None:
        self._mode = mode
        self._max_lag = max_lag
        self._budget = tokens_per_micro_batch
        self._temperature = temperature
        self._scorer = SnapshotScorer(policy)
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def keeps(self) -> bool:
        """Whether snapshots are wanted at all."""
        return self._mode != "never"

    def keep(self, version: int, snapshot: Snapshot) -> None:
        """Remembers a published version and lets go of those that no batch may hold any more."""
        if self._mode == "never":
            return
        self._snapshots[version] = snapshot
        oldest = snapshot.step - self._max_lag - 1
        self._snapshots = {number: held for number, held in self._snapshots.items() if held.step >= oldest}

    def old_log_probs(self, batch: TrainingBatch) -> Tensor | None:
        """Log pi_old of each completion token [N] float32, NaN where it is not known; None when none is wanted."""
        wanted = self._wanted(batch)
        if not wanted:
            return None
        result = torch.full_like(batch.behavior_log_probs, torch.nan)
        with torch.no_grad():
            for version, snapshot in self._snapshots.items():
                self._fill(result, batch, version, snapshot, wanted)
        return result

    def _wanted(self, batch: TrainingBatch) -> list[int]:
        if self._mode == "never":
            return []
        share = 1 if self._mode == "always" else SAMPLED_SHARE
        return [index for index in range(batch.sequences) if (index + batch.step) % share == 0]

    def _fill(
        self, result: Tensor, batch: TrainingBatch, version: int, snapshot: Snapshot, wanted: list[int]
    ) -> None:
        from_version = batch.token_versions == version
        members = [index for index in wanted if bool(from_version[batch.tokens_of(index)].any())]
        if not members:
            return
        policy = self._scorer.under(snapshot)
        lengths = batch.total_lengths
        for part in plan_micro_batches([lengths[index] for index in members], self._budget):
            rows = [(members[position],) for position in part]
            tokens = token_positions(batch.lengths, torch.tensor(flat(rows)))
            log_probs = completion_log_probs(policy, batch, rows, self._temperature).cpu()
            result[tokens] = torch.where(from_version[tokens], log_probs, result[tokens])


def split_log_ratio(
    log_probs: Tensor, old_log_probs: Tensor, behavior_log_probs: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Staleness and chip parts of log W of each sequence [S] float32; NaN where a token's pi_old is not known.

    Args:
        log_probs: log pi of each action token [N].
        old_log_probs: log pi_old of each action token [N]; NaN where it is not known.
        behavior_log_probs: log mu of each action token [N].
        lengths: Action tokens of each sequence [S].
    """
    staleness = segment_sum(log_probs - old_log_probs, lengths)
    return staleness, segment_sum(old_log_probs - behavior_log_probs, lengths)
