"""What a preset's `weigh` reads: the columns of some whole sequences, with the log-ratios at hand."""

import dataclasses

import torch
from torch import Tensor

from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio, Part, Weight
from hetero_rl.estimators.stages.level import segment_max, segment_sum, to_tokens

__all__ = ["View", "Weighed", "clamped_sequences", "views", "whole_view"]


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    """What a method decided: a weight per token or per sequence, and what stays in the loss."""

    weight: Weight
    mask: Tensor | None = None
    """1 keeps, 0 drops, per token [n] or per sequence [s]; None keeps all."""
    log_weight: LogRatio | None = None
    """Log-ratio per sequence [s] that was held within bounds before `exp`; None says that it was each token's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """n tokens of s sequences: numbers only, nothing couples them."""

    log_probs: Tensor
    """log pi [n]; 0 where the token is not usable."""
    behavior_log_probs: Tensor
    """log mu [n]."""
    lengths: Tensor
    """Tokens of each sequence [s]."""
    advantages: Tensor
    """Advantage of each sequence [s]."""
    total: LogRatio
    """log pi/mu [n]; 0 where the token is not usable."""
    staleness: LogRatio | None
    """log pi/pi_old [n]; None when pi_old was not recomputed."""
    chip: LogRatio | None
    """log pi_old/mu [n]; None when pi_old was not recomputed."""
    sums: Tensor
    """log W: sum of `total` over each sequence [s]."""
    usable: Tensor | None
    """1 for tokens whose log-ratios are finite [n]; None when all are."""
    token_lags: Tensor | None
    sequence_constants: Tensor | None
    expert: Tensor | None

    @property
    def tokens(self) -> int:
        """Number of tokens n."""
        return self.log_probs.shape[0]

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
        if self.sequence_constants is None:
            raise ValueError("sequence_constants is None; the batch was prepared by another estimator")
        return self.sequence_constants

    @property
    def sequence_product(self) -> LogRatio:
        """Log W [s]."""
        return LogRatio(self.sums, Part.TOTAL)

    def part(self, part: Part) -> LogRatio:
        """Log-ratio of each token that accounts for `part` [n].

        Raises:
            ValueError: A part alone was asked for, and pi_old was not recomputed.
        """
        found = {Part.TOTAL: self.total, Part.STALENESS: self.staleness, Part.CHIP: self.chip}[part]
        if found is None:
            raise ValueError(
                "old_log_probs is None; this estimator splits the ratio at pi_old. Set "
                'estimator.recompute_old_log_probs = "always", or its options so that it uses pi/mu'
            )
        return found

    def to_tokens(self, per_sequence: Tensor) -> Tensor:
        """Repeats one number per sequence [s] for each of its tokens [n]."""
        return to_tokens(per_sequence, self.lengths, self.tokens)

    def per_token(self, numbers: Tensor) -> Tensor:
        """Numbers per token [n], whether given per token or per sequence [s]."""
        return numbers if numbers.shape[0] == self.tokens else self.to_tokens(numbers)

    def token_window(self, bounds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Brings a lower and an upper bound per sequence [s] to tokens [n]."""
        return self.to_tokens(bounds[0]), self.to_tokens(bounds[1])


def whole_view(batch: PreparedBatch, log_probs: Tensor) -> View:
    """All sequences of a batch with the current log-probabilities [n]."""
    return _view(batch, log_probs, slice(None), slice(None))


def views(batch: PreparedBatch, log_probs: Tensor, tokens_per_view: int) -> "list[tuple[slice, View]]":
    """Consecutive whole sequences of a batch, about `tokens_per_view` tokens each, with their token positions."""
    lengths = batch.recorded.lengths
    total = log_probs.shape[0]
    if total <= tokens_per_view:
        return [(slice(0, total), whole_view(batch, log_probs))]
    ends = lengths.cumsum(0)
    pieces = torch.arange(1, total // tokens_per_view + 1) * tokens_per_view
    cuts = sorted({*torch.searchsorted(ends, pieces, right=True).tolist(), 0, lengths.shape[0]})
    token_cuts = [0, *(ends[torch.tensor(cuts[1:]) - 1].tolist())]
    found = []
    for index in range(len(cuts) - 1):
        tokens = slice(token_cuts[index], token_cuts[index + 1])
        found.append((tokens, _view(batch, log_probs, tokens, slice(cuts[index], cuts[index + 1]))))
    return found


def clamped_sequences(view: View, weighed: Weighed) -> Tensor:
    """Whether a log-ratio of the sequence was held within bounds before `exp` [s], bool."""
    if weighed.log_weight is not None:
        return weighed.log_weight.values.abs() > LOG_RATIO_BOUND
    low, high = view.total.values.aminmax()
    if float(low) >= -LOG_RATIO_BOUND and float(high) <= LOG_RATIO_BOUND:
        return torch.zeros_like(view.lengths, dtype=torch.bool)
    return segment_max(view.total.values.abs(), view.lengths) > LOG_RATIO_BOUND


def _view(batch: PreparedBatch, log_probs: Tensor, tokens: slice, sequences: slice) -> View:
    recorded = batch.recorded
    lengths = recorded.lengths[sequences]
    pi, mu = log_probs[tokens], recorded.behavior_log_probs[tokens]
    old = None if recorded.old_log_probs is None else recorded.old_log_probs[tokens]
    ratios = [pi - mu] if old is None else [pi - mu, pi - old, old - mu]
    sums = [segment_sum(ratio, lengths) for ratio in ratios]
    usable = None
    if not all(bool(total.isfinite().all()) for total in sums):
        usable = torch.stack([ratio.isfinite() for ratio in ratios]).all(0)
        ratios = [torch.where(usable, ratio, 0.0) for ratio in ratios]
        pi = torch.where(usable, pi, 0.0)
        sums = [segment_sum(ratios[0], lengths)]
    constants = batch.sequence_constants
    return View(
        log_probs=pi,
        behavior_log_probs=mu,
        lengths=lengths,
        advantages=batch.advantages[sequences],
        total=LogRatio(ratios[0], Part.TOTAL),
        staleness=None if old is None else LogRatio(ratios[1], Part.STALENESS),
        chip=None if old is None else LogRatio(ratios[2], Part.CHIP),
        sums=sums[0],
        usable=None if usable is None else usable.to(pi.dtype),
        token_lags=None if recorded.token_lags is None else recorded.token_lags[tokens],
        sequence_constants=None if constants is None else constants[sequences],
        expert=None if recorded.expert is None else recorded.expert[sequences],
    )
