"""From tokens to the level at which a method weighs: token, prefix, sequence product, geometric mean.

On a CPU the segment operations go through numpy, whose segmented loops are vectorised and sum pairwise; torch's are not.
Where numba is installed, compiled loops take fewer passes over the tokens.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hetero_rl.estimators.stages.edge import LOG_RATIO_BOUND, LogRatio
from hetero_rl.estimators.stages.loops import compiled_loops

__all__ = [
    "Starts",
    "cuts",
    "finite_mean",
    "held_sums",
    "log_ratio_sums",
    "new_columns",
    "prefix_product",
    "roots_of_positions",
    "scale",
    "segment_max",
    "segment_min",
    "segment_starts",
    "segment_sum",
    "to_tokens",
]

Starts = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Positions of the first entries of consecutive segments [s]."""


def cuts(starts: Starts, tokens: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Consecutive whole sequences of about `size` tokens: their positions, and those of their tokens.

    Args:
        starts: Position of the first token of each sequence [s].
        tokens: Tokens of all.
        size: Tokens of a piece; a sequence is never cut.
    """
    wanted = np.arange(size, tokens, size)
    firsts = sorted({0, *np.searchsorted(starts, wanted).tolist()} - {starts.shape[0]})
    edges = [*starts[firsts].tolist(), tokens]
    yield from zip(
        map(slice, firsts, [*firsts[1:], starts.shape[0]]), map(slice, edges[:-1], edges[1:]), strict=True
    )


def new_columns(count: int, tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Columns of any numbers [count, tokens].

    On a CPU they are numpy's, which asks the system for huge pages where they are large: the first touch of small pages
    costs more than the arithmetic on what they hold.
    """
    if device.type == "cpu":
        kind = np.float32 if dtype == torch.float32 else np.float64
        return torch.from_numpy(np.empty((count, tokens), kind))
    return torch.empty((count, tokens), dtype=dtype, device=device)


def segment_starts(lengths: Tensor) -> Starts:
    """Position of the first entry of each of the consecutive segments with these lengths [s], on the host."""
    counts = lengths.cpu().numpy()
    starts: Starts = counts.cumsum() - counts
    return starts


def segment_sum(
    values: Tensor, lengths: Tensor, starts: Starts | None = None, out: Tensor | None = None
) -> Tensor:
    """Sums [s] of consecutive segments of a flat column.

    Args:
        values: Column [n], float32 or float64.
        lengths: Segment lengths [s], int64, at least 1, adding up to n.
        starts: `segment_starts` of the lengths, where they are known already.
        out: Where the sums are written [s].
    """
    if values.device.type != "cpu":
        sums: Tensor = torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)
        return sums if out is None else out.copy_(sums)
    starts = segment_starts(lengths) if starts is None else starts
    if out is None:
        return torch.from_numpy(np.add.reduceat(values.numpy(), starts))
    np.add.reduceat(values.numpy(), starts, out=out.numpy())
    return out


def log_ratio_sums(first: Tensor, second: Tensor, lengths: Tensor, out: Tensor, sums: Tensor) -> bool | None:
    """Forms log-ratios and adds them up.

    Args:
        first: Log of the numerator [n].
        second: Log of the denominator [n].
        lengths: Tokens of each sequence [s].
        out: Where first - second is written [n].
        sums: Where its sum over each sequence is written [s].

    Returns:
        Whether all lie within +-`LOG_RATIO_BOUND`; None where that takes another pass.
    """
    loops = compiled_loops(out)
    if loops is None:
        segment_sum(torch.sub(first, second, out=out), lengths, out=sums)
        return None
    column, bound = out.numpy(), out.numpy().dtype.type(LOG_RATIO_BOUND)
    within: bool = loops.differences(
        first.numpy(), second.numpy(), lengths.numpy(), bound, column, sums.numpy()
    )
    return within


def segment_max(values: Tensor, lengths: Tensor) -> Tensor:
    """Largest number [s] of each segment of a column [n]; lengths as for `segment_sum`."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.maximum.reduceat(values.numpy(), segment_starts(lengths)))
    largest: Tensor = torch.segment_reduce(values, "max", lengths=lengths, unsafe=True)
    return largest


def segment_min(values: Tensor, lengths: Tensor) -> Tensor:
    """Smallest number [s] of each segment of a column [n]; lengths as for `segment_sum`."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.minimum.reduceat(values.numpy(), segment_starts(lengths)))
    smallest: Tensor = torch.segment_reduce(values, "min", lengths=lengths, unsafe=True)
    return smallest


def held_sums(values: Tensor, low: Tensor, high: Tensor, lengths: Tensor) -> Tensor:
    """Sums [s] over each sequence of a column's numbers [n], held within bounds per sequence [s]."""
    loops = compiled_loops(values)
    if loops is None:
        tokens = values.shape[0]
        held = torch.minimum(values, to_tokens(high, lengths, tokens))
        return segment_sum(torch.maximum(held, to_tokens(low, lengths, tokens), out=held), lengths)
    sums = torch.empty(lengths.shape, dtype=values.dtype)
    bounds = (bound.to(values.dtype).numpy() for bound in (low, high))
    loops.held_sums(values.numpy(), *bounds, lengths.numpy(), sums.numpy())
    return sums


def scale(values: Tensor, factors: Tensor, lengths: Tensor) -> Tensor:
    """Multiplies a column [n] in place by a factor per sequence [s]."""
    loops = compiled_loops(values)
    if loops is None:
        return values.mul_(to_tokens(factors, lengths, values.shape[0]))
    loops.scale(factors.to(values.dtype).numpy(), lengths.numpy(), values.numpy())
    return values


def to_tokens(per_sequence: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """Repeats one number per sequence [s] for each of its tokens [n = tokens]."""
    if per_sequence.device.type == "cpu":
        return torch.from_numpy(per_sequence.numpy().repeat(lengths.numpy()))
    return torch.repeat_interleave(per_sequence, lengths, output_size=tokens)


def roots_of_positions(lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """Square roots of 1, 2, ... up to the longest length."""
    return torch.arange(1, int(lengths.max()) + 1, dtype=dtype, device=lengths.device).sqrt_()


def prefix_product(log_ratio: LogRatio, lengths: Tensor, out: Tensor, high: float = math.inf) -> LogRatio:
    """Log of the product of the token ratios up to and including each token, summed in float64.

    Args:
        log_ratio: Log-ratio of each token [n].
        lengths: Tokens of each sequence [s].
        out: Where the result is written [n].
        high: Each log-ratio is held below it first.
    """
    values = log_ratio.values
    loops = compiled_loops(values)
    if loops is None:
        return LogRatio(out.copy_(_running_sums(values.clamp(max=high), lengths)), log_ratio.part)
    loops.running_sums(values.numpy(), high, lengths.numpy(), out.numpy())
    return LogRatio(out, log_ratio.part)


def finite_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean [s] over the finite numbers of each segment of a column [n]; NaN where there is none."""
    sums = segment_sum(values, lengths)
    if bool(sums.isfinite().all()):
        return sums / lengths
    finite = values.isfinite()
    return segment_sum(torch.where(finite, values, 0.0), lengths) / segment_sum(finite.to(values), lengths)


def _running_sums(values: Tensor, lengths: Tensor) -> Tensor:
    running = values.to(torch.float64, copy=True)
    # Each sequence's first entry takes back the sum of the sequence before, so one running sum starts over at each.
    starts = (lengths.cumsum(0) - lengths)[1:]
    running[starts] -= segment_sum(running, lengths)[:-1]
    return running.cumsum_(0)
