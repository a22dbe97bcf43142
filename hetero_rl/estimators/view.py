"""What a preset's `weigh` reads: the columns of some whole sequences, with the log-ratios at hand."""

import dataclasses

import torch
from torch import Tensor

from hetero_rl.estimators.batch import Coefficients, PreparedBatch
from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio, Part, Weight, difference
from hetero_rl.estimators.stages.level import segment_sum, to_tokens

__all__ = ["View", "Weighed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    """What a method decided: a weight per token or per sequence, and what stays in the loss."""

    weight: Weight
    keep: Tensor | None = None
    """Per token [n] or per sequence [s]; None keeps all."""
    clamped: Tensor | None = None
    """Per sequence [s]: a log-ratio was held within bounds; None asks the token log-ratios."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """n tokens of s sequences."""

    batch: PreparedBatch
    log_probs: Tensor
    """log pi [n]."""
    total: LogRatio
    """log pi/mu [n]."""
    usable: Tensor | None
    """Tokens with a finite log-ratio [n]; None when all are."""

    @classmethod
    def of(cls, batch: PreparedBatch, log_probs: Tensor) -> "View":
        """Reads a micro-batch with the current log-probabilities [n]."""
        log_ratio, usable = difference(log_probs, batch.recorded.behavior_log_probs)
        return cls(batch, log_probs, LogRatio(log_ratio, Part.TOTAL), usable)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence [s]."""
        return self.batch.recorded.lengths

    @property
    def advantages(self) -> Tensor:
        """Advantage of each sequence [s]."""
        return self.batch.advantages

    @property
    def token_advantages(self) -> Tensor:
        """Advantage of each token [n]."""
        return self.to_tokens(self.batch.advantages)

    @property
    def token_counts(self) -> Tensor:
        """Tokens of each sequence that have a finite log-ratio [s]."""
        if self.usable is None:
            return self.lengths
        return segment_sum(self.usable.to(self.log_probs.dtype), self.lengths)

    @property
    def constants(self) -> Tensor:
        """What `couple` took from the whole batch for each sequence [s]."""
        constants = self.batch.sequence_constants
        if constants is None:
            raise ValueError("sequence_constants is None; the batch was prepared by another estimator")
        return constants

    @property
    def mean_log_prob(self) -> Tensor:
        """Mean of log pi over the usable tokens of each sequence [s]; 0 where there is none."""
        log_probs = self.log_probs if self.usable is None else torch.where(self.usable, self.log_probs, 0.0)
        return segment_sum(log_probs, self.lengths) / self.token_counts.clamp(min=1)

    def to_tokens(self, per_sequence: Tensor) -> Tensor:
        """Repeats one number per sequence [s] for each of its tokens [n]."""
        return to_tokens(per_sequence, self.lengths, self.log_probs.shape[0])

    def finish(self, weighed: Weighed) -> Coefficients:
        """Brings a method's decision to tokens and adds what is reported."""
        values = self._per_token(weighed.weight.values)
        keep = torch.ones_like(values, dtype=torch.bool)
        if weighed.keep is not None:
            keep &= self._per_token(weighed.keep)
        if self.usable is not None:
            keep &= self.usable
        kept_tokens = segment_sum(keep.to(values.dtype), self.lengths)
        unusable = self.lengths - self.token_counts.to(torch.int64)
        clamped = weighed.clamped
        if clamped is None:
            beyond = (self.total.values.abs() > LOG_RATIO_BOUND).to(values.dtype)
            clamped = segment_sum(beyond, self.lengths) > 0
        return Coefficients(
            values=torch.where(keep, values, 0.0),
            keep=keep,
            log_importance_ratio=segment_sum(self.total.values, self.lengths),
            unusable_tokens=unusable,
            clamped=clamped,
            masked=kept_tokens == 0,
        )

    def _per_token(self, numbers: Tensor) -> Tensor:
        return numbers if numbers.shape[0] == self.log_probs.shape[0] else self.to_tokens(numbers)
