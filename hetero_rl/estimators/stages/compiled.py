"""Compiled loops over the tokens of a CPU: one pass where torch needs several. Needs numba, which the extra `codec` has.

Every stage with such a loop says the same in torch too, for accelerators and for where numba is missing. Columns per token
are float32 or float64 [n]; lengths are those of consecutive sequences [s], int64, and add up to n; `out` is written to.

Positions are unsigned, which spares numba's test for negative ones and lets the processor work on many tokens at once.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

__all__ = ["differences", "hold", "others_ratio", "over_roots", "running_sums", "signed_binary_kl", "window"]

_Floats = np.ndarray[tuple[int], np.dtype[np.floating[Any]]]
_Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
_Function = TypeVar("_Function", bound=Callable[..., Any])

U = np.uint64


def _loop(function: _Function) -> _Function:
    # No loop allocates, so none needs numba's own memory management. Sums may be taken in any order, and so in parallel.
    compiled: _Function = numba.njit(
        cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath={"reassoc"}
    )(function)
    return compiled


@_loop
def differences(
    first: _Floats,
    second: _Floats,
    lengths: _Integers,
    bound: np.floating[Any],
    out: _Floats,
    sums: _Floats,
) -> bool:
    """First minus second, their sums over each sequence [s], and whether all lie within +-`bound`."""
    start = U(0)
    beyond = 0
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        total = bound - bound  # zero, in its data type
        for position in range(start, stop):
            value = first[position] - second[position]
            out[position] = value
            total += value
            beyond += (value > bound) | (value < -bound)
        sums[sequence] = total
        start = stop
    return beyond == 0


@_loop
def running_sums(values: _Floats, lengths: _Integers, out: _Floats) -> None:
    """Sum of each sequence's entries up to and including each, in float64."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        total = 0.0
        for position in range(start, stop):
            total += values[position]
            out[position] = total
        start = stop


@_loop
def over_roots(values: _Floats, roots: _Floats, lengths: _Integers, out: _Floats) -> None:
    """Each entry over the root of its position in its sequence, from a table with one for each position."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        length = U(lengths[sequence])
        for index in range(length):
            out[start + index] = values[start + index] / roots[index]
        start += length


@_loop
def window(values: _Floats, low: _Floats, high: _Floats, lengths: _Integers, out: _Floats) -> None:
    """1 where low <= value <= high, else 0, with bounds per sequence [s]."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        lowest, highest = low[sequence], high[sequence]
        for position in range(start, stop):
            value = values[position]
            out[position] = 1.0 if (value >= lowest) & (value <= highest) else 0.0
        start = stop


@_loop
def hold(values: _Floats, low: _Floats, high: _Floats, lengths: _Integers, out: _Floats) -> None:
    """Each entry held within bounds per sequence [s]."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        lowest, highest = low[sequence], high[sequence]
        for position in range(start, stop):
            out[position] = min(max(values[position], lowest), highest)
        start = stop


@_loop
def others_ratio(
    mu: _Floats, ratio: _Floats, one: np.floating[Any], tiny: np.floating[Any], out: _Floats
) -> None:
    """(1 - mu * ratio)/(1 - mu), both kept above `tiny`; constants in the data type of the columns."""
    for position in range(U(mu.shape[0])):
        others = one - mu[position] * ratio[position]
        out[position] = max(others, tiny) / max(one - mu[position], tiny)


@_loop
def signed_binary_kl(
    mu: _Floats, log_ratio: _Floats, log_others: _Floats, one: np.floating[Any], out: _Floats
) -> None:
    """-(mu * log_ratio + (1 - mu) * log_others), with the sign of log_ratio."""
    for position in range(U(mu.shape[0])):
        moved = log_ratio[position]
        mean = mu[position] * moved + (one - mu[position]) * log_others[position]
        out[position] = abs(mean) if moved >= 0 else -abs(mean)
