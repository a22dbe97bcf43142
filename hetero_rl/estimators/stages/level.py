"""From tokens to the level at which a method weighs: token, prefix, sequence product, geometric mean."""

import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LogRatio

__all__ = ["finite_mean", "geometric_mean", "segment_sum", "sequence_product", "to_tokens"]


def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums [s] of consecutive segments of a flat column.

    Args:
        values: Column [n], floating point.
        lengths: Segment lengths [s], int64, adding up to n.
    """
    sums: Tensor = torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)
    return sums


def to_tokens(per_sequence: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """Repeats one number per sequence [s] for each of its tokens [n = tokens]."""
    return torch.repeat_interleave(per_sequence, lengths, output_size=tokens)


def sequence_product(log_ratio: LogRatio, lengths: Tensor) -> LogRatio:
    """Log of the product of a sequence's token ratios [s]."""
    return LogRatio(segment_sum(log_ratio.values, lengths), log_ratio.part)


def geometric_mean(log_ratio: LogRatio, lengths: Tensor, token_counts: Tensor) -> LogRatio:
    """Log of the geometric mean of a sequence's token ratios [s].

    Args:
        log_ratio: Per token [n].
        lengths: Tokens of each sequence [s].
        token_counts: Tokens of each sequence that have a ratio [s]; at least 1 is used as the divisor.
    """
    sums = segment_sum(log_ratio.values, lengths)
    return LogRatio(sums / token_counts.clamp(min=1), log_ratio.part)


def finite_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean [s] over the finite numbers of each segment of a column [n]; NaN where there is none."""
    sums = segment_sum(values, lengths)
    if bool(torch.isfinite(sums).all()):
        return sums / lengths
    finite = torch.isfinite(values)
    counts = segment_sum(finite.to(values.dtype), lengths)
    return segment_sum(torch.where(finite, values, 0.0), lengths) / counts
