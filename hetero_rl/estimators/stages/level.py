"""From tokens to the level at which a method weighs: token, prefix, sequence product, geometric mean.

On a CPU the segment operations go through numpy, whose segmented loops are vectorised and sum pairwise; torch's are not.
"""

import numpy as np
import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LogRatio

__all__ = [
    "finite_mean",
    "geometric_mean",
    "positions",
    "prefix_product",
    "segment_max",
    "segment_sum",
    "sequence_product",
    "to_tokens",
]


def segment_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums [s] of consecutive segments of a flat column.

    Args:
        values: Column [n], float32 or float64.
        lengths: Segment lengths [s], int64, at least 1, adding up to n.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.add.reduceat(values.numpy(), _starts(lengths)))
    sums: Tensor = torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)
    return sums


def segment_max(values: Tensor, lengths: Tensor) -> Tensor:
    """Largest number [s] of each segment of a column [n]; lengths as for `segment_sum`."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.maximum.reduceat(values.numpy(), _starts(lengths)))
    largest: Tensor = torch.segment_reduce(values, "max", lengths=lengths, unsafe=True)
    return largest


def to_tokens(per_sequence: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """Repeats one number per sequence [s] for each of its tokens [n = tokens]."""
    if per_sequence.device.type == "cpu":
        return torch.from_numpy(np.repeat(per_sequence.numpy(), lengths.numpy()))
    return torch.repeat_interleave(per_sequence, lengths, output_size=tokens)


def positions(lengths: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    """Position of each token in its sequence [n], from 1."""
    starts = (lengths.cumsum(0) - lengths).to(dtype)
    return torch.arange(1, tokens + 1, dtype=dtype, device=lengths.device) - to_tokens(
        starts, lengths, tokens
    )


def sequence_product(log_ratio: LogRatio, lengths: Tensor) -> LogRatio:
    """Log of the product of a sequence's token ratios [s]."""
    return LogRatio(segment_sum(log_ratio.values, lengths), log_ratio.part)


def prefix_product(log_ratio: LogRatio, lengths: Tensor) -> LogRatio:
    """Log of the product of the token ratios up to and including each token [n], summed in float64."""
    running = log_ratio.values.cumsum(0, dtype=torch.float64)
    before = running[lengths.cumsum(0) - 1].roll(1)
    before[0] = 0.0
    running -= to_tokens(before, lengths, running.shape[0])
    return LogRatio(running.to(log_ratio.values.dtype), log_ratio.part)


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
    if bool(sums.isfinite().all()):
        return sums / lengths
    finite = values.isfinite()
    return segment_sum(torch.where(finite, values, 0.0), lengths) / segment_sum(finite.to(values), lengths)


def _starts(lengths: Tensor) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    ends = np.cumsum(lengths.numpy())
    return np.concatenate(([0], ends[:-1]))
