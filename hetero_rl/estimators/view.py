"""What a preset's `weigh` reads: the columns of some whole sequences, with the log-ratios at hand.

Columns per token are made when they are asked for, so that a method pays for what it reads. log W is always there.
"""

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.scratch import Scratch
from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio, Part, Weight
from hetero_rl.estimators.stages.level import (
    cuts,
    log_ratio_sums,
    scale,
    segment_max,
    segment_starts,
    segment_sum,
    to_tokens,
)
from hetero_rl.estimators.stages.masks import clip_bounds, drop_outside, safe_log, sequence_window

__all__ = ["TOKENS_PER_VIEW", "View", "Walk", "Weighed", "log_weights", "views"]

TOKENS_PER_VIEW = 1 << 18
"""Tokens that are weighed at once on a CPU: few enough for its cache, enough to outweigh the calls."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    """What a method decided: a weight per token or per sequence, and what stays in the loss."""

    weight: Weight
    mask: Tensor | None = None
    """1 keeps, 0 drops, per token [n] or per sequence [s]; None keeps all."""
    log_weight: LogRatio | None = None
    """Log-ratio per sequence [s] that was held within bounds before `exp`; None says that tokens' were."""


class Walk:
    """The views of a batch one after another, and what is reported of each sequence whatever the method.

    Any cut gives the same numbers, so on a CPU the batch is walked in pieces that its cache holds. Columns per sequence are
    made once for the batch, and each view fills its part of them.

    Args:
        batch: The prepared batch.
        log_probs: log pi of each of its tokens [N].
        out: Where weights per token may be written [N].
    """

    def __init__(self, batch: PreparedBatch, log_probs: Tensor, out: Tensor | None = None) -> None:
        recorded = batch.recorded
        self.batch = batch
        self.log_probs = log_probs
        self.out = out
        split = recorded.old_log_probs is not None
        self.parts = (Part.STALENESS, Part.CHIP) if split else (Part.TOTAL,)
        """What the log-ratios are formed of."""
        sequences = recorded.lengths.shape[0]
        self.sums = torch.empty((len(self.parts), sequences), dtype=log_probs.dtype, device=log_probs.device)
        """Sum of the log-ratios of each part over each sequence [parts, S]."""
        self.unusable_tokens = torch.zeros_like(recorded.lengths)
        """Tokens of each sequence without a finite log-ratio [S]."""
        self.clamped = torch.zeros(sequences, dtype=torch.bool, device=log_probs.device)
        """Whether a log-ratio of the sequence was held within bounds before `exp` [S]."""
        self.starts = segment_starts(recorded.lengths)
        """Position of the first token of each sequence [S]."""
        self._clip_bounds: dict[tuple[float | None, ...], tuple[Tensor, Tensor]] = {}

    def __iter__(self) -> "Iterator[tuple[slice, View]]":
        """Consecutive whole sequences, with the positions of their tokens; a view holds until the next one is asked for."""
        total = self.log_probs.shape[0]
        per_view = TOKENS_PER_VIEW if self.log_probs.device.type == "cpu" else total
        pieces = list(cuts(self.starts, total, per_view))
        scratch = Scratch(self.log_probs, max(tokens.stop - tokens.start for _, tokens in pieces))
        for sequences, tokens in pieces:
            scratch.give_back()
            yield tokens, View(self, sequences, tokens, scratch)

    def clip_bounds(
        self, sequences: slice, low: float | None, high: float | None, dual: float | None
    ) -> tuple[Tensor, Tensor]:
        """`masks.clip_bounds` of some sequences, found for all of them when first asked for."""
        key = (low, high, dual)
        if key not in self._clip_bounds:
            self._clip_bounds[key] = clip_bounds(self.batch.advantages, low, high, dual)
        lowest, highest = self._clip_bounds[key]
        return lowest[sequences], highest[sequences]

    def report(self) -> dict[str, Tensor]:
        """What the views found, by the names in `Coefficients`."""
        reported = {
            "lengths": self.batch.recorded.lengths,
            "log_importance_ratio": self.sums.sum(0) if len(self.parts) > 1 else self.sums[0],
            "unusable_tokens": self.unusable_tokens,
            "clamped": self.clamped,
        }
        if len(self.parts) > 1:
            reported["staleness_log_ratio"], reported["chip_log_ratio"] = self.sums
        return reported


class View:
    """n tokens of s sequences: numbers only, nothing couples them.

    Args:
        walk: The walk it is a step of.
        sequences: Positions of the view's sequences.
        tokens: Positions of the view's tokens.
        scratch: Where its columns come from; they are its own until the next view of the walk is made.
    """

    def __init__(self, walk: Walk, sequences: slice, tokens: slice, scratch: Scratch) -> None:
        recorded = walk.batch.recorded
        self._walk = walk
        self._batch = walk.batch
        self._sequences = sequences
        self._tokens = tokens
        self._scratch = scratch
        self._starts = walk.starts[sequences] - tokens.start
        self.lengths = recorded.lengths[sequences]
        """Tokens of each sequence [s]."""
        self.advantages = walk.batch.advantages[sequences]
        """Advantage of each sequence [s]."""
        self.log_probs = walk.log_probs[tokens]
        """log pi [n]; 0 where the token is not usable."""
        self.behavior_log_probs = recorded.behavior_log_probs[tokens]
        """log mu [n]."""
        self.usable: Tensor | None = None
        """1 for tokens whose log-ratios are finite [n]; None when all are."""
        self.tokens = tokens.stop - tokens.start
        """Number of tokens n."""
        self.out = self.column() if walk.out is None else walk.out[tokens]
        """Where a weight per token may be written [n]."""
        self._bounded: dict[Part, LogRatio] = {}
        sums = walk.sums[:, sequences]
        self._sums = dict(zip(walk.parts, sums, strict=True))
        self._columns: dict[Part, Tensor] = {}
        self._within: dict[Part, bool | None] = {}
        for part, (first, second) in self._edges().items():
            column = self._columns[part] = self.column()
            self._within[part] = log_ratio_sums(first, second, self.lengths, column, self._sums[part])
        # One number that is not finite makes the sum of all so.
        if not math.isfinite(float(sums.sum())):
            self._take_out_unusable()
        if Part.TOTAL not in self._sums:
            self._sums[Part.TOTAL] = self._sums[Part.STALENESS] + self._sums[Part.CHIP]

    @property
    def token_counts(self) -> Tensor:
        """Usable tokens of each sequence [s]."""
        return self.lengths if self.usable is None else self.segment_sum(self.usable)

    @property
    def mean_log_prob(self) -> Tensor:
        """Mean of log pi over the usable tokens of each sequence [s]; 0 where there is none."""
        return self.segment_sum(self.log_probs) / self.token_counts.clamp(min=1)

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
                total = torch.sub(self.log_probs, self.behavior_log_probs, out=self.column())
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

    def segment_sum(self, values: Tensor, out: Tensor | None = None) -> Tensor:
        """Sum over each sequence [s] of a column per token [n]; written to `out` where one is given."""
        return segment_sum(values, self.lengths, self._starts, out)

    def clip_bounds(
        self, low: float | None, high: float | None, dual: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Bounds of each sequence [s] inside which a clipped surrogate has a gradient; see `masks.clip_bounds`."""
        return self._walk.clip_bounds(self._sequences, low, high, dual)

    def log_bounds(self, low: float, high: float) -> tuple[Tensor, Tensor]:
        """Bounds on a log-ratio [s] from bounds on the ratio, the same for each sequence."""
        shape = self.lengths.shape
        return self.log_probs.new_full(shape, safe_log(low)), self.log_probs.new_full(shape, safe_log(high))

    def drop_outside(
        self, weight: Weight, values: Tensor, bounds: tuple[Tensor, Tensor], cap: float = math.inf
    ) -> Weight:
        """The weight per token, at most `cap`, and 0 where `values` [n] are outside bounds per sequence [s]; in place."""
        return Weight(drop_outside(weight.values, values, bounds, self.lengths, cap), weight.part)

    def inside(self, values: Tensor, bounds: tuple[Tensor, Tensor], per_sequence: Tensor) -> Tensor:
        """A number per sequence [s] for those of its tokens whose value is inside its bounds, else 0; in `out` [n]."""
        return sequence_window(values, bounds, per_sequence, self.lengths, self.out)

    def to_tokens(self, per_sequence: Tensor) -> Tensor:
        """Repeats one number per sequence [s] for each of its tokens [n]."""
        return to_tokens(per_sequence, self.lengths, self.tokens)

    def per_token(self, numbers: Tensor) -> Tensor:
        """Numbers per token [n], whether given per token or per sequence [s]."""
        return numbers if numbers.shape[0] == self.tokens else self.to_tokens(numbers)

    def coefficients(self, weighed: Weighed) -> Tensor:
        """A method's decision as one column: per sequence [s], or per token in `out` [n]."""
        values, mask = weighed.weight.values, weighed.mask
        if weighed.log_weight is not None:
            beyond = weighed.log_weight.values.abs() > LOG_RATIO_BOUND
            self._walk.clamped[self._sequences] = beyond
        if self.usable is not None:
            mask = self.usable if mask is None else self.per_token(mask) * self.usable
        if values.shape == self.lengths.shape:
            if mask is None or mask.shape == values.shape:
                return values if mask is None else values * mask
            values = self.to_tokens(values)
        if mask is not None and mask.shape != self.lengths.shape:
            return torch.mul(values, mask, out=self.out)
        column = values if values is self.out else self.out.copy_(values)
        return column if mask is None else scale(column, mask, self.lengths)

    def _require(self, part: Part) -> None:
        if part is not Part.TOTAL and part not in self._sums:
            raise ValueError(
                "old_log_probs is None; this estimator splits the ratio at pi_old. Set "
                'estimator.recompute_old_log_probs = "always", or its options so that it uses pi/mu'
            )

    def _edges(self) -> dict[Part, tuple[Tensor, Tensor]]:
        old = self._batch.recorded.old_log_probs
        if old is None:
            return {Part.TOTAL: (self.log_probs, self.behavior_log_probs)}
        old = old[self._tokens]
        return {Part.STALENESS: (self.log_probs, old), Part.CHIP: (old, self.behavior_log_probs)}

    def _take_out_unusable(self) -> None:
        usable = torch.stack([column.isfinite() for column in self._columns.values()]).all(0)
        self.usable = usable.to(self.log_probs.dtype)
        self.log_probs = torch.where(usable, self.log_probs, 0.0)
        for part, column in self._columns.items():
            self._columns[part] = torch.where(usable, column, 0.0)
            self._within[part] = None
            self.segment_sum(self._columns[part], out=self._sums[part])
        self._walk.unusable_tokens[self._sequences] = self.lengths - self.token_counts.to(torch.int64)

    def _hold(self, column: Tensor, part: Part) -> LogRatio:
        within = self._within.get(part)
        if within is None:
            lowest, highest = map(float, column.aminmax())
            within = lowest >= -LOG_RATIO_BOUND and highest <= LOG_RATIO_BOUND
        if within:
            return LogRatio(column, part, bounded=True)
        self._walk.clamped[self._sequences] |= segment_max(column.abs(), self.lengths) > LOG_RATIO_BOUND
        return LogRatio(column.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND), part, bounded=True)


def views(batch: PreparedBatch, log_probs: Tensor) -> Iterator[View]:
    """The views of a batch, of log pi of each of its tokens [n]; each holds until the next one is asked for."""
    return (view for _, view in Walk(batch, log_probs))


def log_weights(batch: PreparedBatch, log_probs: Tensor) -> Tensor:
    """Log W of each sequence [s]; -inf where no token has a ratio."""
    return torch.cat(
        [
            torch.where(view.token_counts > 0, view.product().values, -torch.inf)
            for view in views(batch, log_probs)
        ]
    )
