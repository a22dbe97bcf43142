"""What a preset's `weigh` reads: the columns of some whole sequences, with the log-ratios at hand.

Columns per token are made when they are asked for, so that a method pays for what it reads. log W is always there.
"""

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio, Part, Weight
from hetero_rl.estimators.stages.level import (
    cuts,
    new_columns,
    segment_max,
    segment_sum,
    to_tokens,
)

__all__ = ["TOKENS_PER_VIEW", "Scratch", "View", "Weighed", "log_weights", "views"]

TOKENS_PER_VIEW = 1 << 19
"""Tokens that are weighed at once on a CPU: few enough for its cache, enough to outweigh the calls."""
COLUMNS_AT_ONCE = 4
"""Columns of a view that are allocated together, so that they are large enough for huge pages."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    """What a method decided: a weight per token or per sequence, and what stays in the loss."""

    weight: Weight
    mask: Tensor | None = None
    """1 keeps, 0 drops, per token [n] or per sequence [s]; None keeps all."""
    log_weight: LogRatio | None = None
    """Log-ratio per sequence [s] that was held within bounds before `exp`; None says that tokens' were."""


class Scratch:
    """Columns per token that the views of one walk write to in turn: fresh memory costs more than arithmetic.

    Args:
        like: Data type and device.
        size: Tokens of the largest view.
    """

    def __init__(self, like: Tensor, size: int) -> None:
        self._like = like
        self._size = size
        self._free: dict[torch.dtype, list[Tensor]] = {}
        self._taken: list[Tensor] = []

    def take(self, tokens: int, dtype: torch.dtype | None = None) -> Tensor:
        """A column [n = tokens] of any numbers, the caller's until `give_back`."""
        free = self._free.setdefault(dtype or self._like.dtype, [])
        if not free:
            kind = dtype or self._like.dtype
            free += new_columns(COLUMNS_AT_ONCE, self._size, kind, self._like.device).unbind()
        column = free.pop()
        self._taken.append(column)
        return column[:tokens]

    def give_back(self) -> None:
        """Ends the use of all columns taken."""
        while self._taken:
            column = self._taken.pop()
            self._free[column.dtype].append(column)


class View:
    """n tokens of s sequences: numbers only, nothing couples them.

    Args:
        batch: The prepared batch.
        log_probs: log pi of each of its tokens [N].
        tokens: Positions of the view's tokens.
        sequences: Positions of the view's sequences.
        scratch: Where its columns come from; they are its own until the next view of the walk is made.
        out: Where a weight per token may be written [n]; None takes a column for it.
    """

    def __init__(
        self,
        batch: PreparedBatch,
        log_probs: Tensor,
        tokens: slice,
        sequences: slice,
        scratch: Scratch,
        out: Tensor | None = None,
    ) -> None:
        recorded = batch.recorded
        self._tokens = tokens
        self._sequences = sequences
        self._batch = batch
        self._scratch = scratch
        self.lengths = recorded.lengths[sequences]
        """Tokens of each sequence [s]."""
        self.advantages = batch.advantages[sequences]
        """Advantage of each sequence [s]."""
        self.log_probs = log_probs[tokens]
        """log pi [n]; 0 where the token is not usable."""
        self.behavior_log_probs = recorded.behavior_log_probs[tokens]
        """log mu [n]."""
        self.usable: Tensor | None = None
        """1 for tokens whose log-ratios are finite [n]; None when all are."""
        self.tokens = self.log_probs.shape[0]
        """Number of tokens n."""
        self.out = self.column() if out is None else out
        """Where a weight per token may be written [n]."""
        self._columns = self._log_ratios()
        self._sums = {part: segment_sum(column, self.lengths) for part, column in self._columns.items()}
        # One number that is not finite makes the sum of all so.
        if not all(math.isfinite(float(sums.sum())) for sums in self._sums.values()):
            self._take_out_unusable()
        if Part.TOTAL not in self._sums:
            self._sums[Part.TOTAL] = self._sums[Part.STALENESS] + self._sums[Part.CHIP]
        self._bounded: dict[Part, LogRatio] = {}
        self._clamped: Tensor | None = None

    @property
    def token_counts(self) -> Tensor:
        """Usable tokens of each sequence [s]."""
        return self.lengths if self.usable is None else segment_sum(self.usable, self.lengths)

    @property
    def mean_log_prob(self) -> Tensor:
        """Mean of log pi over the usable tokens of each sequence [s]; 0 where there is none."""
        return segment_sum(self.log_probs, self.lengths) / self.token_counts.clamp(min=1)

    @property
    def constants(self) -> Tensor:
        """What `couple` took from the whole batch for each sequence [s]."""
        constants = self._batch.sequence_constants
        if constants is None:
            raise ValueError("sequence_constants is None; the batch was prepared by another estimator")
        return constants[self._sequences]

    @property
    def expert(self) -> Tensor | None:
        """Whether a sequence is an expert's [s]."""
        expert = self._batch.recorded.expert
        return None if expert is None else expert[self._sequences]

    @property
    def token_lags(self) -> Tensor | None:
        """Lag of each token in optimizer steps [n]."""
        lags = self._batch.recorded.token_lags
        return None if lags is None else lags[self._tokens]

    def column(self, dtype: torch.dtype | None = None) -> Tensor:
        """A column to write to [n]; it holds any numbers, and is the view's while the view is looked at."""
        return self._scratch.take(self.tokens, dtype)

    def log_ratio(self, part: Part) -> LogRatio:
        """Log-ratio of each token that accounts for `part`, held within bounds [n]; 0 where it is not finite."""
        if part not in self._bounded:
            self._require(part)
            if part not in self._columns:
                total = self._difference(self.log_probs, self.behavior_log_probs)
                self._columns[part] = (
                    total if self.usable is None else torch.where(self.usable > 0, total, 0.0)
                )
            self._bounded[part] = self._hold(self._columns[part], part)
        return self._bounded[part]

    def product(self, part: Part = Part.TOTAL) -> LogRatio:
        """Log of the product of each sequence's token ratios [s]; log W for the total."""
        self._require(part)
        return LogRatio(self._sums[part], part)

    def geometric_mean(self, part: Part = Part.TOTAL) -> LogRatio:
        """Log of the geometric mean of each sequence's token ratios [s]."""
        return LogRatio(self.product(part).values / self.token_counts.clamp(min=1), part)

    def to_tokens(self, per_sequence: Tensor) -> Tensor:
        """Repeats one number per sequence [s] for each of its tokens [n]."""
        return to_tokens(per_sequence, self.lengths, self.tokens)

    def per_token(self, numbers: Tensor) -> Tensor:
        """Numbers per token [n], whether given per token or per sequence [s]."""
        return numbers if numbers.shape[0] == self.tokens else self.to_tokens(numbers)

    def coefficients(self, weighed: Weighed) -> Tensor:
        """A method's decision as one column: per sequence [s], or per token in `out` [n]."""
        values, mask = weighed.weight.values, weighed.mask
        if self.usable is not None:
            mask = self.usable if mask is None else self.per_token(mask) * self.usable
        if mask is not None and mask.shape == values.shape == self.lengths.shape:
            return values * mask
        if mask is not None:
            return torch.mul(self.per_token(values), self.per_token(mask), out=self.out)
        if values.shape == self.lengths.shape or values is self.out:
            return values
        return self.out.copy_(values)

    def report(self, weighed: Weighed) -> dict[str, Tensor]:
        """What is reported of each sequence whatever the method, by the names in `Coefficients`."""
        clamped = self._clamped
        if weighed.log_weight is not None:
            clamped = weighed.log_weight.values.abs() > LOG_RATIO_BOUND
        reported = {
            "lengths": self.lengths,
            "log_importance_ratio": self._sums[Part.TOTAL],
            "unusable_tokens": self.lengths - self.token_counts.to(torch.int64),
            "clamped": torch.zeros_like(self.lengths, dtype=torch.bool) if clamped is None else clamped,
        }
        if Part.CHIP in self._sums:
            reported["staleness_log_ratio"] = self._sums[Part.STALENESS]
            reported["chip_log_ratio"] = self._sums[Part.CHIP]
        return reported

    def _require(self, part: Part) -> None:
        if part is not Part.TOTAL and part not in self._sums:
            raise ValueError(
                "old_log_probs is None; this estimator splits the ratio at pi_old. Set "
                'estimator.recompute_old_log_probs = "always", or its options so that it uses pi/mu'
            )

    def _log_ratios(self) -> dict[Part, Tensor]:
        recorded = self._batch.recorded
        if recorded.old_log_probs is None:
            return {Part.TOTAL: self._difference(self.log_probs, self.behavior_log_probs)}
        old = recorded.old_log_probs[self._tokens]
        return {
            Part.STALENESS: self._difference(self.log_probs, old),
            Part.CHIP: self._difference(old, self.behavior_log_probs),
        }

    def _difference(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.sub(first, second, out=self.column())

    def _take_out_unusable(self) -> None:
        usable = torch.stack([column.isfinite() for column in self._columns.values()]).all(0)
        self.usable = usable.to(self.log_probs.dtype)
        self.log_probs = torch.where(usable, self.log_probs, 0.0)
        for part, column in self._columns.items():
            self._columns[part] = torch.where(usable, column, 0.0)
            self._sums[part] = segment_sum(self._columns[part], self.lengths)

    def _hold(self, column: Tensor, part: Part) -> LogRatio:
        highest = float(column.amax())
        if highest <= LOG_RATIO_BOUND and float(column.amin()) >= -LOG_RATIO_BOUND:
            return LogRatio(column, part, bounded=True, highest=highest)
        beyond = segment_max(column.abs(), self.lengths) > LOG_RATIO_BOUND
        self._clamped = beyond if self._clamped is None else self._clamped | beyond
        return LogRatio(column.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND), part, bounded=True)


def views(batch: PreparedBatch, log_probs: Tensor, out: Tensor | None = None) -> Iterator[tuple[slice, View]]:
    """Consecutive whole sequences of a batch, with the positions of their tokens.

    Any cut gives the same numbers, so on a CPU the batch is walked in pieces that its cache holds.

    Args:
        batch: The prepared batch.
        log_probs: log pi of each of its tokens [n].
        out: Where weights per token may be written [n].
    """
    total = log_probs.shape[0]
    per_view = TOKENS_PER_VIEW if log_probs.device.type == "cpu" else total
    pieces = list(cuts(batch.recorded.lengths, total, per_view))
    scratch = Scratch(log_probs, max(tokens.stop - tokens.start for _, tokens in pieces))
    for sequences, tokens in pieces:
        scratch.give_back()
        view = View(batch, log_probs, tokens, sequences, scratch, None if out is None else out[tokens])
        yield tokens, view


def log_weights(batch: PreparedBatch, log_probs: Tensor) -> Tensor:
    """Log W of each sequence [s]; -inf where no token has a ratio."""
    found = []
    for _, view in views(batch, log_probs):
        found.append(torch.where(view.token_counts > 0, view.product().values, -torch.inf))
    return torch.cat(found)
