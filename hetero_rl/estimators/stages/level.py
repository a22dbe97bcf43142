"""From tokens to the level at which a method weighs: token, prefix, sequence product, geometric mean.

On a CPU the segment operations go through numpy, whose segmented loops are vectorised and sum pairwise; torch's are not.
"""

import numpy as np
import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LogRatio

__all__ = ["finite_mean", "prefix_product", "root_positions", "segment_max", "segment_sum", "to_tokens"]


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


def root_positions(lengths: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    """Square root of each token's position in its sequence, from 1 [n = tokens]."""
    before = (lengths.cumsum(0) - lengths).to(dtype)
    counted = torch.arange(1, tokens + 1, dtype=dtype, device=lengths.device)
    return counted.sub_(to_tokens(before, lengths, tokens)).sqrt_()


def prefix_product(log_ratio: LogRatio, lengths: Tensor) -> LogRatio:
    """Log of the product of the token ratios up to and including each token [n], summed in float64."""
    running = log_ratio.values.to(torch.float64, copy=True)
    # Each sequence's first entry takes back the sum of the sequence before, so one running sum starts over at each.
    starts = (lengths.cumsum(0) - lengths)[1:]
    running[starts] -= segment_sum(running, lengths)[:-1]
    return LogRatio(running.cumsum_(0).to(log_ratio.values.dtype), log_ratio.part)


def finite_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean [s] over the finite numbers of each segment of a column [n]; NaN where there is none."""
    sums = segment_sum(values, lengths)
    if bool(sums.isfinite().all()):
        return sums / lengths
    finite = values.isfinite()
    return segment_sum(torch.where(finite, values, 0.0), lengths) / segment_sum(finite.to(values), lengths)


def _starts(lengths: Tensor) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    starts = np.zeros(lengths.shape[0], dtype=np.int64)
    np.cumsum(lengths.numpy()[:-1], out=starts[1:])
    return starts
