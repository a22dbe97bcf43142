"""Keeps the hub's queue of prompt groups filled ahead of the gate, within its credits.

The position in the data is the ordinal of the next group. The hub journals what was enqueued and says after a restart
where to go on, and a group's name and content follow from its ordinal alone, so enqueueing twice changes nothing.
"""

from collections.abc import Sequence

from hetero_rl.config.tree import Config
from hetero_rl.tasks import PromptEncoder, Task, TaskItem
from hetero_rl.tasks.task import derive_seed
from hetero_rl.telemetry.tracing import group_spans
from hetero_rl.trainer.patience import Patience
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import PromptGroup, Purpose, SamplingParameters
from hetero_rl.wire.ports import TrainingPort

__all__ = ["PromptFeeder", "PromptMaker", "groups_ahead"]

GROUPS_PER_CALL = 64
"""Groups in one message: far below the message limit with prompts of usual length."""


def groups_ahead(config: Config) -> int:
    """Prompt groups kept queued ahead of the step that is being made."""
    return config.trainer.prefetch_groups or (config.staleness.max_lag + 2) * config.trainer.groups_per_step


class PromptMaker:
    """Makes prompt groups from a task.

    Args:
        task: Where items come from.
        encoder: Turns a question into token ids.
        config: The run's settings.
        stop_token_ids: A completion ends with the first of these.
    """

    def __init__(
        self, task: Task, encoder: PromptEncoder, config: Config, stop_token_ids: tuple[int, ...]
    ) -> None:
        self._task = task
        self._encoder = encoder
        self._config = config
        self._stop_token_ids = stop_token_ids

    @property
    def sampling(self) -> SamplingParameters:
        """Sampling of the training groups, without a seed."""
        sampling = self._config.sampling
        return SamplingParameters(
            max_new_tokens=sampling.max_new_tokens,
            stop_token_ids=self._stop_token_ids,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )

    def training_group(self, ordinal: int) -> PromptGroup:
        """The training group at a position of the data."""
        sampling = self._config.sampling
        return self._group(
            f"train-{ordinal:08d}",
            ordinal,
            self._task.training_item(ordinal),
            purpose=Purpose.TRAIN,
            group_size=self._config.trainer.group_size,
            temperature=sampling.temperature,
        )

    def evaluation_groups(self, weight_version: int) -> list[PromptGroup]:
        """One group of one completion for every held-out item, for workers that hold at least the given version."""
        return [
            self._group(
                f"eval-v{weight_version:08d}-{position:06d}",
                position,
                item,
                purpose=Purpose.EVALUATION,
                group_size=1,
                temperature=self._config.evaluation.temperature,
                min_weight_version=weight_version,
            )
            for position, item in enumerate(self._task.held_out_items)
        ]

    def held_out_prompts(self) -> list[list[int]]:
        """Token ids of the held-out prompts."""
        return [self._encoder.encode(item.question) for item in self._task.held_out_items]

    def _group(
        self,
        group_id: str,
        ordinal: int,
        item: TaskItem,
        *,
        purpose: Purpose,
        group_size: int,
        temperature: float,
        min_weight_version: int = 0,
    ) -> PromptGroup:
        training = purpose is Purpose.TRAIN
        return PromptGroup(
            group_id=group_id,
            ordinal=ordinal,
            purpose=purpose,
            prompt_token_ids=int32_column(self._encoder.encode(item.question)),
            group_size=group_size,
            payload=item.payload,
            min_weight_version=min_weight_version,
            sampling=SamplingParameters(
                max_new_tokens=self._config.sampling.max_new_tokens,
                stop_token_ids=self._stop_token_ids,
                temperature=temperature,
                top_p=self._config.sampling.top_p if training else 1.0,
                top_k=self._config.sampling.top_k if training else 0,
                seed=derive_seed(self._config.run.seed, purpose.name, ordinal),
            ),
        )


class PromptFeeder:
    """Enqueues training groups in ascending order of ordinal.

    Args:
        maker: Makes the groups.
        port: The hub.
        patience: Repeats calls.
        next_ordinal: The first ordinal that the hub does not have.
        credits: Groups that the hub takes now.
        groups_per_step: Groups of one step.
        total_steps: Steps of the run; nothing is enqueued beyond them.
        ahead: Groups kept enqueued from the step being made.
    """

    def __init__(
        self,
        maker: PromptMaker,
        port: TrainingPort,
        patience: Patience,
        *,
        next_ordinal: int,
        credits: int,  # ruff: ignore[builtin-argument-shadowing] - the protocol's word
        groups_per_step: int,
        total_steps: int,
        ahead: int,
    ) -> None:
        self._maker = maker
        self._port = port
        self._patience = patience
        self._credits = credits
        self._groups_per_step = groups_per_step
        self._total = total_steps * groups_per_step
        self._ahead = max(ahead, groups_per_step)
        self.next_ordinal = next_ordinal
        """Ordinal of the next group: the position in the data."""

    def feed(self, step: int) -> None:
        """Fills the queue up for the making of optimizer step `step`, from 1."""
        frontier = min((step - 1) * self._groups_per_step + self._ahead, self._total)
        if self._credits <= 0 < self.next_ordinal < frontier:
            # A known group is not queued again; the answer says what the queue takes now.
            self._enqueue([self._maker.training_group(self.next_ordinal - 1)])
        while self.next_ordinal < frontier and self._credits > 0:
            count = min(frontier - self.next_ordinal, self._credits, GROUPS_PER_CALL)
            ordinals = range(self.next_ordinal, self.next_ordinal + count)
            self._enqueue([self._maker.training_group(ordinal) for ordinal in ordinals])
            self.next_ordinal += count

    def _enqueue(self, groups: Sequence[PromptGroup]) -> None:
        with group_spans("enqueue", [group.group_id for group in groups]):
            receipt = self._patience(lambda: self._port.enqueue_groups(groups), "enqueueing prompts")
        self._credits = receipt.credits
