"""Compiled loops over the tokens of a CPU: one pass where torch needs several. Needs numba, which the extra `codec` has.

Every stage with such a loop says the same in torch too, for accelerators and for where numba is missing. Columns per token
are float32 or float64 [n]; lengths are those of consecutive sequences [s], int64, and add up to n; `out` is written to.

Positions are unsigned, which spares numba's test for negative ones and lets the processor work on many tokens at once.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

__all__ = [
    "differences",
    "drop_beyond_binary_kl",
    "drop_outside",
    "drop_outside_per_root",
    "expert_shape",
    "gate",
    "gate_argument",
    "held_sums",
    "others_ratio",
    "running_sums",
    "scale",
    "signed_binary_kl",
    "window",
]

_Floats = np.ndarray[tuple[int], np.dtype[np.floating[Any]]]
_Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
_Function = TypeVar("_Function", bound=Callable[..., Any])

U = np.uint64


# No loop allocates, so none needs numba's own memory management.
_OPTIONS = {"cache": True, "nogil": True, "_nrt": False, "error_model": "numpy"}


def _loop(function: _Function) -> _Function:
    # Sums may be taken in any order, and so in parallel.
    compiled: _Function = numba.njit(fastmath={"reassoc"}, **_OPTIONS)(function)
    return compiled


def _in_order(function: _Function) -> _Function:
    # Sums are taken as they are written.
    compiled: _Function = numba.njit(**_OPTIONS)(function)
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


@_in_order
def running_sums(values: _Floats, high: float, lengths: _Integers, out: _Floats) -> None:
    """Sum of each sequence's entries, held below `high`, up to and including each, in float64."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        length = U(lengths[sequence])
        total = 0.0
        # Four at a time: an entry then waits for the one four before it, not for the one before it.
        fours = length // U(4)
        position = start
        for _ in range(fours):
            first = min(np.float64(values[position]), high)
            second = first + min(np.float64(values[position + U(1)]), high)
            third = min(np.float64(values[position + U(2)]), high)
            fourth = third + min(np.float64(values[position + U(3)]), high)
            out[position] = total + first
            out[position + U(1)] = total + second
            out[position + U(2)] = total + second + third
            total += second + fourth
            out[position + U(3)] = total
            position += U(4)
        for rest in range(position, start + length):
            total += min(np.float64(values[rest]), high)
            out[rest] = total
        start += length


@_loop
def held_sums(values: _Floats, low: _Floats, high: _Floats, lengths: _Integers, sums: _Floats) -> None:
    """Sum over each sequence [s] of its entries held within its bounds [s]."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        lowest, highest = low[sequence], high[sequence]
        total = values[start] - values[start]  # zero, in its data type
        for position in range(start, stop):
            total += min(max(values[position], lowest), highest)
        sums[sequence] = total
        start = stop


@_loop
def window(
    values: _Floats, low: _Floats, high: _Floats, inside: _Floats, lengths: _Integers, out: _Floats
) -> None:
    """`inside` where low <= value <= high, else 0; bounds and `inside` per sequence [s]."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        lowest, highest, kept = low[sequence], high[sequence], inside[sequence]
        for position in range(start, stop):
            value = values[position]
            out[position] = kept if (value >= lowest) & (value <= highest) else 0.0
        start = stop


@_loop
def drop_outside(
    values: _Floats,
    low: _Floats,
    high: _Floats,
    cap: np.floating[Any],
    lengths: _Integers,
    out: _Floats,
) -> None:
    """Holds `out` below `cap`, and sets it to 0 where not low <= value <= high; bounds per sequence [s]."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        lowest, highest = low[sequence], high[sequence]
        for position in range(start, stop):
            value, kept = values[position], min(out[position], cap)
            out[position] = kept if (value >= lowest) & (value <= highest) else 0.0
        start = stop


@_loop
def drop_outside_per_root(
    values: _Floats, roots: _Floats, low: _Floats, high: _Floats, lengths: _Integers, out: _Floats
) -> None:
    """Sets `out` to 0 where a value over the root of its position is outside; `roots` has one for each position."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        length = U(lengths[sequence])
        lowest, highest = low[sequence], high[sequence]
        for index in range(length):
            value, kept = values[start + index] / roots[index], out[start + index]
            out[start + index] = kept if (value >= lowest) & (value <= highest) else 0.0
        start += length


@_loop
def scale(factors: _Floats, lengths: _Integers, out: _Floats) -> None:
    """Multiplies each sequence of `out` by its factor [s]; those with a factor of 1 are not read."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        factor = factors[sequence]
        if factor != 1:
            for position in range(start, stop):
                out[position] *= factor
        start = stop


@_loop
def gate_argument(
    ratio: _Floats, half_tau: _Floats, one: np.floating[Any], lengths: _Integers, out: _Floats
) -> None:
    """(ratio - 1) times a factor per sequence [s]; `one` in the data type of the columns."""
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        factor = half_tau[sequence]
        for position in range(start, stop):
            out[position] = (ratio[position] - one) * factor
        start = stop


@_loop
def gate(tanh: _Floats, one: np.floating[Any], out: _Floats) -> None:
    """Multiplies `out` by 1 - tanh^2; `one` in the data type of the columns."""
    for position in range(U(out.shape[0])):
        out[position] *= one - tanh[position] * tanh[position]


@_loop
def expert_shape(one: np.floating[Any], gamma: np.floating[Any], out: _Floats) -> None:
    """Replaces each probability p of `out`, held below 1, by gamma p / (p + gamma)^2."""
    for position in range(U(out.shape[0])):
        probability = min(out[position], one)
        shifted = probability + gamma
        out[position] = gamma * probability / (shifted * shifted)


@_loop
def others_ratio(
    mu: _Floats, ratio: _Floats, one: np.floating[Any], tiny: np.floating[Any], out: _Floats
) -> None:
    """(1 - mu * ratio)/(1 - mu), both kept above `tiny`; constants in the data type of the columns."""
    for position in range(U(mu.shape[0])):
        others = one - mu[position] * ratio[position]
        out[position] = max(others, tiny) / max(one - mu[position], tiny)


@_loop
def signed_binary_kl(mu: _Floats, log_ratio: _Floats, one: np.floating[Any], out: _Floats) -> None:
    """-(mu * log_ratio + (1 - mu) * log_others), with the sign of log_ratio, in place of log_others."""
    for position in range(U(mu.shape[0])):
        moved = log_ratio[position]
        mean = mu[position] * moved + (one - mu[position]) * out[position]
        out[position] = abs(mean) if moved >= 0 else -abs(mean)


@_loop
def drop_beyond_binary_kl(
    mu: _Floats,
    log_ratio: _Floats,
    log_others: _Floats,
    low: _Floats,
    high: _Floats,
    constants: _Floats,
    lengths: _Integers,
    out: _Floats,
) -> None:
    """Holds `out` below a cap, and sets it to 0 where the signed binary KL is outside bounds per sequence [s].

    `constants` are 1 and the cap, in the data type of the columns.
    """
    one, cap = constants[0], constants[1]
    start = U(0)
    for sequence in range(lengths.shape[0]):
        stop = start + U(lengths[sequence])
        fall, rise = -low[sequence], high[sequence]
        for position in range(start, stop):
            moved, kept = log_ratio[position], min(out[position], cap)
            mean = mu[position] * moved + (one - mu[position]) * log_others[position]
            limit = rise if moved >= 0 else fall
            out[position] = kept if abs(mean) <= limit else 0.0
        start = stop
