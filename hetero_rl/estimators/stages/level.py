"""From tokens to the level at which a method weighs: token, prefix, sequence product, geometric mean.

On a CPU the segment operations go through numpy, whose segmented loops are vectorised and sum pairwise; torch's are not.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LogRatio

__all__ = [
    "cuts",
    "finite_mean",
    "new_columns",
    "prefix_product",
    "root_positions",
    "segment_max",
    "segment_sum",
    "to_tokens",
]


def cuts(lengths: Tensor, tokens: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Consecutive whole sequences of about `size` tokens: their positions, and those of their tokens.

    Args:
        lengths: Tokens of each sequence [s].
        tokens: Their sum.
        size: Tokens of a piece; a sequence is never cut.
    """
    ends = lengths.cumsum(0).cpu()
    wanted = torch.arange(1, tokens // size + 1) * size
    stops = sorted({*torch.searchsorted(ends, wanted, right=True).tolist(), ends.shape[0]} - {0})
    edges = [0, *ends[[stop - 1 for stop in stops]].tolist()]
    yield from zip(map(slice, [0, *stops[:-1]], stops), map(slice, edges[:-1], edges[1:]), strict=True)


def new_columns(count: int, tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Columns of any numbers [count, tokens].

    On a CPU they are numpy's, which asks the system for huge pages where they are large: the first touch of small pages
    costs more than the arithmetic on what they hold.
    """
    if device.type == "cpu":
        kind = np.float32 if dtype == torch.float32 else np.float64
        return torch.from_numpy(np.empty((count, tokens), kind))
    return torch.empty((count, tokens), dtype=dtype, device=device)


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


def root_positions(lengths: Tensor, out: Tensor) -> Tensor:
    """Square root of each token's position in its sequence, from 1, in `out` [n]."""
    roots = torch.arange(1, int(lengths.max()) + 1, dtype=out.dtype, device=out.device).sqrt_()
    if out.device.type == "cpu":
        column = roots.numpy()
        np.concatenate([column[:length] for length in lengths.tolist()], out=out.numpy())
        return out
    return torch.cat([roots[:length] for length in lengths.tolist()], out=out)


def prefix_product(log_ratio: LogRatio, lengths: Tensor, out: Tensor, wide: Tensor) -> LogRatio:
    """Log of the product of the token ratios up to and including each token.

    Args:
        log_ratio: Log-ratio of each token [n].
        lengths: Tokens of each sequence [s].
        out: Where the result is written [n].
        wide: A column to sum in [n], float64.
    """
    running = wide.copy_(log_ratio.values)
    # Each sequence's first entry takes back the sum of the sequence before, so one running sum starts over at each.
    starts = (lengths.cumsum(0) - lengths)[1:]
    running[starts] -= segment_sum(running, lengths)[:-1]
    return LogRatio(out.copy_(running.cumsum_(0)), log_ratio.part)


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
