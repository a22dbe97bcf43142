"""What an estimator reads and returns: flat columns, N action tokens of S sequences in sequence order.

A batch holds action tokens only: prompts and padding never enter it, so nothing here needs a padding mask.

    lengths [S]              3        2     4
    behavior_log_probs [N]   a a a    b b   c c c c
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from hetero_rl.estimators.stages.level import segment_sum, to_tokens

__all__ = ["Coefficients", "PreparedBatch", "RecordedBatch", "token_positions"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """What was recorded when the sequences of one optimizer step were sampled.

    Raises:
        ValueError: A column is missing, has the wrong shape or type, a length is below 1, a reward is not finite.
    """

    behavior_log_probs: Tensor
    """log mu of each token under the distribution it was sampled from [N], float32 or float64."""
    lengths: Tensor
    """Action tokens of each sequence [S], int64, at least 1."""
    group_ids: Tensor
    """Prompt group of each sequence [S], int64; any numbers."""
    rewards: Tensor
    """Reward of each sequence [S], float32 or float64."""
    old_log_probs: Tensor | None = None
    """log pi_old of each token [N]: the trainer's own, under the weights that sampled it. None: not recomputed."""
    token_lags: Tensor | None = None
    """Lag of each token in optimizer steps [N], int64. None: not known."""
    expert: Tensor | None = None
    """Whether a sequence was written by somebody else than a policy of this run [S], bool. None: none was."""
    group_size: int | None = None
    """Members that a whole group has; groups with fewer are counted. None: every group is whole as it is."""
    max_new_tokens: int | None = None
    """Largest completion of the run in tokens."""

    def __post_init__(self) -> None:
        """Checks shapes, types and ranges; reads only the columns per sequence."""
        required = ("behavior_log_probs", "lengths", "group_ids", "rewards")
        missing = [name for name in required if not isinstance(getattr(self, name), Tensor)]
        if missing:
            raise ValueError(f"{missing[0]} is {getattr(self, missing[0])!r}; a tensor is required")
        sequences = self.lengths.shape[0] if self.lengths.dim() == 1 else -1
        tokens = self.behavior_log_probs.shape[0] if self.behavior_log_probs.dim() == 1 else -1
        if sequences < 1 or tokens < 1:
            raise ValueError(
                f"lengths has shape {tuple(self.lengths.shape)} and behavior_log_probs "
                f"{tuple(self.behavior_log_probs.shape)}; both are flat and not empty"
            )
        _check_column("lengths", self.lengths, sequences, integer=True)
        _check_column("group_ids", self.group_ids, sequences, integer=True)
        _check_column("rewards", self.rewards, sequences, integer=False)
        _check_column("behavior_log_probs", self.behavior_log_probs, tokens, integer=False)
        if self.old_log_probs is not None:
            _check_column("old_log_probs", self.old_log_probs, tokens, integer=False)
        if self.token_lags is not None:
            _check_column("token_lags", self.token_lags, tokens, integer=True)
        if self.expert is not None and (self.expert.shape != (sequences,) or self.expert.dtype != torch.bool):
            raise ValueError(
                f"expert is {self.expert.dtype} {tuple(self.expert.shape)}; bool ({sequences},) is required"
            )
        _check_values(self.lengths, self.rewards, tokens)
        for name in ("group_size", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it is at least 1")

    @property
    def sequence_ids(self) -> Tensor:
        """Sequence of each token [N], int64."""
        positions = torch.arange(self.lengths.shape[0], device=self.lengths.device)
        return torch.repeat_interleave(positions, self.lengths, output_size=self.behavior_log_probs.shape[0])

    def select(self, sequence_indices: Tensor) -> "RecordedBatch":
        """The sequences of the given positions [k], in that order."""
        tokens = token_positions(self.lengths, sequence_indices)
        return RecordedBatch(
            behavior_log_probs=self.behavior_log_probs[tokens],
            lengths=self.lengths[sequence_indices],
            group_ids=self.group_ids[sequence_indices],
            rewards=self.rewards[sequence_indices],
            old_log_probs=None if self.old_log_probs is None else self.old_log_probs[tokens],
            token_lags=None if self.token_lags is None else self.token_lags[tokens],
            expert=None if self.expert is None else self.expert[sequence_indices],
            group_size=self.group_size,
            max_new_tokens=self.max_new_tokens,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """A recorded batch with everything that couples its sequences already computed: it can be cut anywhere."""

    recorded: RecordedBatch
    advantages: Tensor
    """Advantage of each sequence [S]."""
    sequence_weights: Tensor
    """Aggregation weight of each token of a sequence [S]; its denominator is that of the whole batch."""
    sequence_constants: Tensor | None = None
    """One number per sequence that the method took from the whole batch [S], such as GEPO's log E[q]."""
    facts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Counts and statistics of the whole batch, such as incomplete groups."""

    @property
    def sequences(self) -> int:
        """S."""
        return self.recorded.lengths.shape[0]

    @property
    def aggregation_weights(self) -> Tensor:
        """Aggregation weight of each token [N]."""
        lengths = self.recorded.lengths
        tokens = self.recorded.behavior_log_probs.shape[0]
        return to_tokens(self.sequence_weights, lengths, tokens)

    def tokens_of(self, sequence_indices: Tensor) -> Tensor:
        """Positions of the tokens of the given sequences [k] in the columns per token [m]."""
        return token_positions(self.recorded.lengths, sequence_indices)

    def select(self, sequence_indices: Tensor | Sequence[int]) -> "PreparedBatch":
        """The micro-batch of the given sequence positions [k], in that order; no number changes."""
        lengths = self.recorded.lengths
        indices = torch.as_tensor(sequence_indices, dtype=torch.int64, device=lengths.device)
        constants = self.sequence_constants
        return PreparedBatch(
            recorded=self.recorded.select(indices),
            advantages=self.advantages[indices],
            sequence_weights=self.sequence_weights[indices],
            sequence_constants=None if constants is None else constants[indices],
            facts=self.facts,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What multiplies A * aggregation weight * grad log pi, detached, and what led to it.

    n tokens of s sequences: those of the micro-batch.
    """

    weights: Tensor
    """Coefficient of each token [n], or of each sequence [s] where its tokens share one. Never negative."""
    lengths: Tensor
    """Tokens of each sequence [s]."""
    log_importance_ratio: Tensor
    """log pi/mu of each sequence [s]: the sum over its tokens, not held within bounds."""
    unusable_tokens: Tensor
    """Tokens of each sequence without a finite log-ratio [s], int64; they add nothing to any sum."""
    clamped: Tensor
    """Whether a log-ratio of the sequence was held within bounds before `exp` [s], bool."""
    staleness_log_ratio: Tensor | None = None
    """log pi/pi_old of each sequence [s], NaN where it is not known; None when pi_old was not recomputed."""
    chip_log_ratio: Tensor | None = None
    """log pi_old/mu of each sequence [s], NaN where it is not known; None when pi_old was not recomputed."""

    @property
    def values(self) -> Tensor:
        """Coefficient of each token [n]; 0 where the token is out of the loss."""
        if self.weights.shape != self.lengths.shape:
            return self.weights
        return to_tokens(self.weights, self.lengths, int(self.lengths.sum()))

    @property
    def keep(self) -> Tensor:
        """False where a mask, a clip or a log-ratio that is not finite took the token out of the loss [n], bool."""
        return self.values != 0

    @property
    def sequence_means(self) -> Tensor:
        """Mean coefficient over the tokens of each sequence [s]."""
        if self.weights.shape == self.lengths.shape:
            return self.weights
        return segment_sum(self.weights, self.lengths) / self.lengths

    def select(self, sequence_indices: Tensor) -> "Coefficients":
        """Those of the given sequence positions [k], in that order."""
        per_sequence = self.weights.shape == self.lengths.shape
        chosen = sequence_indices if per_sequence else token_positions(self.lengths, sequence_indices)
        staleness, chip = self.staleness_log_ratio, self.chip_log_ratio
        return Coefficients(
            weights=self.weights[chosen],
            lengths=self.lengths[sequence_indices],
            log_importance_ratio=self.log_importance_ratio[sequence_indices],
            unusable_tokens=self.unusable_tokens[sequence_indices],
            clamped=self.clamped[sequence_indices],
            staleness_log_ratio=None if staleness is None else staleness[sequence_indices],
            chip_log_ratio=None if chip is None else chip[sequence_indices],
        )

    @classmethod
    def joined(cls, parts: Sequence["Coefficients"]) -> "Coefficients":
        """Those of several parts of a batch, one after another; each part has the same optional columns."""
        if len(parts) == 1:
            return parts[0]
        per_sequence = all(part.weights.shape == part.lengths.shape for part in parts)

        def column(name: str) -> Tensor | None:
            found = [getattr(part, name) for part in parts]
            return None if found[0] is None else torch.cat(found)

        return cls(
            weights=torch.cat([part.weights if per_sequence else part.values for part in parts]),
            lengths=torch.cat([part.lengths for part in parts]),
            log_importance_ratio=torch.cat([part.log_importance_ratio for part in parts]),
            unusable_tokens=torch.cat([part.unusable_tokens for part in parts]),
            clamped=torch.cat([part.clamped for part in parts]),
            staleness_log_ratio=column("staleness_log_ratio"),
            chip_log_ratio=column("chip_log_ratio"),
        )

    @property
    def masked(self) -> Tensor:
        """Whether no token of the sequence is left in the loss [s], bool."""
        return self.sequence_means == 0


def token_positions(lengths: Tensor, sequence_indices: Tensor) -> Tensor:
    """Positions [m] of the tokens of the chosen sequences [k] in a flat column with segments `lengths` [S]."""
    starts = (lengths.cumsum(0) - lengths)[sequence_indices]
    chosen = lengths[sequence_indices]
    total = int(chosen.sum())
    shift = torch.repeat_interleave(starts - (chosen.cumsum(0) - chosen), chosen, output_size=total)
    return shift + torch.arange(total, device=lengths.device)


def _check_column(name: str, column: Tensor, size: int, *, integer: bool) -> None:
    if column.shape != (size,):
        raise ValueError(f"{name} has shape {tuple(column.shape)}; ({size},) is required")
    fits = column.dtype == torch.int64 if integer else column.dtype in {torch.float32, torch.float64}
    if not fits:
        raise ValueError(
            f"{name} has dtype {column.dtype}; {'int64' if integer else 'float32 or float64'} is required"
        )


def _check_values(lengths: Tensor, rewards: Tensor, tokens: int) -> None:
    if bool((lengths < 1).any()):
        position = int((lengths < 1).nonzero()[0])
        raise ValueError(
            f"lengths[{position}] is {int(lengths[position])}; a sequence has at least 1 action token"
        )
    if int(lengths.sum()) != tokens:
        raise ValueError(f"lengths add up to {int(lengths.sum())}; behavior_log_probs holds {tokens} tokens")
    if not bool(rewards.isfinite().all()):
        position = int((~rewards.isfinite()).nonzero()[0])
        raise ValueError(f"rewards[{position}] is {float(rewards[position])}; rewards are finite")
