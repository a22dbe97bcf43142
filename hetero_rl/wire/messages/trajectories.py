"""What workers hand in, and what became of it. Shapes: S samples of one batch, N tokens in all of them."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, UInt8Bytes
from hetero_rl.wire.messages.work import PromptGroup

__all__ = [
    "Disposition",
    "FinishReason",
    "FinishedGroup",
    "RoutedExperts",
    "ScoreBatch",
    "SequenceOutcome",
    "TrajectoryBatch",
    "VersionSpan",
]


class FinishReason(enum.IntEnum):
    """Why a completion ended."""

    STOP = 1
    LENGTH = 2
    ABORTED = 3


class VersionSpan(NamedTuple):
    """Tokens [start, end) of sample number `sample` of a batch, sampled by one weight version."""

    sample: int
    start: int
    end: int
    weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """Expert ids [N, layers, top_k] in row-major order."""

    expert_ids: Int32Bytes
    layers: int
    top_k: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryBatch:
    """Completions of one group, column by column.

    Example: two completions of group "g7", of 2 and 1 tokens, both sampled by version 3::

        TrajectoryBatch(
            group_id="g7", sample_indices=(0, 1), lengths=(2, 1),
            token_ids=int32_column([11, 2, 2]), log_probs=float32_column([-0.5, -0.1, -2.0]),
            version_spans=(VersionSpan(0, 0, 2, 3), VersionSpan(1, 0, 1, 3)),
            finish_reasons=(FinishReason.STOP, FinishReason.STOP), numerics_id="9f…", generation_seconds=0.2)
    """

    group_id: str
    sample_indices: tuple[int, ...]
    """Index in the group of each sample, ascending, S of them."""
    lengths: tuple[int, ...]
    """Tokens of each completion, S of them, each at least 1."""
    token_ids: Int32Bytes
    """N ids: what was sampled, never re-tokenised text."""
    log_probs: Float32Bytes | None
    """N natural log-probabilities under the distribution sampled from; None for greedy evaluation."""
    version_spans: tuple[VersionSpan, ...]
    """Cover each sample without gap or overlap, in order of sample and start."""
    finish_reasons: tuple[FinishReason, ...]
    numerics_id: str
    generation_seconds: float
    action_mask: UInt8Bytes | None = None
    """N values, 1 where the policy chose the token; None: everywhere."""
    routed_experts: RoutedExperts | None = None

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        experts = self.routed_experts.expert_ids if self.routed_experts else b""
        return len(self.token_ids) + len(self.log_probs or b"") + len(self.action_mask or b"") + len(experts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBatch:
    """Log-probabilities of given tokens: L - 1 for a sequence of L tokens."""

    score_id: str
    log_probs: Float32Bytes
    weight_version: int
    numerics_id: str

    @property
    def size(self) -> int:
        """Bytes of the column."""
        return len(self.log_probs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group with every completion that was asked for."""

    group: PromptGroup
    batches: tuple[TrajectoryBatch, ...]
    """One per submission; together they hold every sample index once."""
    version_steps: Mapping[int, int]
    """Optimizer steps in each weight version that occurs in the spans."""
    worker_names: tuple[str, ...]
    """Worker of each batch."""
    backends: tuple[str, ...]
    """Backend of each batch."""


class Disposition(enum.IntEnum):
    """What was done with a sequence."""

    TRAINED = 0
    MASKED = 1
    DROPPED_STALE = 2
    DROPPED_INCOMPLETE = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutcome:
    """What became of one sequence of a step; kept for every sequence of the run."""

    group_id: str
    sample_index: int
    reward: float
    advantage: float
    log_importance_ratio: float
    """Natural log of pi/mu of the whole sequence."""
    coefficient: float
    """Mean over the tokens of what multiplied the advantage."""
    mean_absolute_gap: float
    """Mean over the tokens of |log mu - log pi|."""
    max_absolute_gap: float
    lag: int
    """Lag of the oldest token in optimizer steps."""
    disposition: Disposition
    staleness_log_ratio: float | None = None
    """log pi/pi_old of the sequence; None when pi_old was not recomputed."""
    chip_log_ratio: float | None = None
    """log pi_old/mu of the sequence; None when pi_old was not recomputed."""
