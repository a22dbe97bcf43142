"""Between hazards, survival and odds, compiled into the delta codec's loops. Needs numba.

The units are those of `survival`: a hazard is a multiple of 2**-20 nats, a survival one of 2**-30. numba's cache notices a
change of a kernel's own file only: after a change here, `kernels` must be touched as well.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from hetero_rl.weights.survival import FINE_BITS, HAZARD_BITS, LOG_BITS, PROBABILITY_BITS, tables

__all__ = [
    "EVEN_ODDS", "FALL_MASK", "FINE_MASK", "LINE_FALLS", "LINE_STARTS", "RANGE_BITS", "SURVIVAL_COARSE", "SURVIVAL_FINE",
    "hazard_before", "inlined", "learn", "nats", "survival",
]  # fmt: skip

_Function = TypeVar("_Function", bound=Callable[..., Any])


def inlined(function: _Function) -> _Function:
    """Part of a kernel: a call would pass each array as seven words."""
    compiled: _Function = numba.njit(nogil=True, _nrt=False, error_model="numpy", forceinline=True)(function)
    return compiled


U = np.uint64
_COARSE, _FINE, _LOGS = tables()
SURVIVAL_COARSE = _COARSE.astype(np.int32)
SURVIVAL_FINE = _FINE.astype(np.int32)
_LN2 = int(_LOGS[-1])
FINE_MASK = (1 << FINE_BITS) - 1
_LOG_SHIFT = 31 - LOG_BITS
# For 1024 ranges of slots a line below the hazard that survives with so many: the tangent in the middle of the range. It
# says where an exact search starts, so it need not be the same everywhere.
_MIDDLES = np.arange(1024) + 0.5
LINE_STARTS = ((-np.log(_MIDDLES / 1024) + 0.5 / _MIDDLES) * (1 << HAZARD_BITS)).astype(np.int32) - 16
LINE_FALLS = (1 / _MIDDLES * (1 << HAZARD_BITS)).astype(np.int32)
RANGE_BITS = PROBABILITY_BITS - 10
FALL_MASK = (1 << RANGE_BITS) - 1

# Odds of a bit: probability of 0 in the upper bits, number of visits in the low byte.
EVEN_ODDS = 32768 << 8
_MOST_VISITS = 250
_RATES = np.array([int(65536 / (visits + 1.6)) for visits in range(256)], np.int32)


@inlined
def survival(hazard):
    coarse = np.int64(SURVIVAL_COARSE[U(hazard >> FINE_BITS)])
    return (coarse * np.int64(SURVIVAL_FINE[U(hazard & FINE_MASK)])) >> PROBABILITY_BITS


@inlined
def nats(numerator, denominator):
    """ln(numerator / denominator) as a hazard."""
    while numerator >= (1 << 31):
        numerator >>= 1
        denominator >>= 1
    ratio = (numerator << 31) // max(denominator, 1)
    octave = 0
    while (ratio >> octave) >= (1 << 32):
        octave += 1
    mantissa = (ratio >> octave) - (1 << 31)
    index, rest = mantissa >> _LOG_SHIFT, mantissa & ((1 << _LOG_SHIFT) - 1)
    slope = _LOGS[U(index + 1)] - _LOGS[U(index)]
    found = _LOGS[U(index)] + ((slope * rest) >> _LOG_SHIFT) + octave * _LN2
    return (found + (1 << (29 - HAZARD_BITS))) >> (30 - HAZARD_BITS)


@inlined
def hazard_before(slot):
    """A hazard that is surely not above the smallest one whose survival is at most `slot`."""
    part = slot >> RANGE_BITS
    fall = np.int64(LINE_FALLS[U(part)]) * (slot & FALL_MASK)
    return np.int64(LINE_STARTS[U(part)]) - (fall >> RANGE_BITS)


@inlined
def learn(odds, index, bit):
    """Moves the odds of a bit towards what it was; the more slowly, the more often it was seen."""
    packed = np.int64(odds[U(index)])
    visits, zero = packed & 255, packed >> 8
    zero += ((((1 - bit) << 16) - zero) * np.int64(_RATES[U(visits)])) >> 16
    zero = min(max(zero, 64), 65536 - 64)
    odds[U(index)] = (zero << 8) | min(visits + 1, _MOST_VISITS)
