"""Exact tables for the survival function exp(-h) and the logarithm, in integers.

Both ends of a link must compute the same interval for the same weights, on any processor. Floating point libraries
differ in the last place, so the tables are made with correctly rounded decimal arithmetic and used as integers.

Units: a hazard is a multiple of 2**-20 nats; a survival probability is a multiple of 2**-30.
"""

import functools
from decimal import ROUND_HALF_EVEN, Context, Decimal

import numpy as np
from numpy.typing import NDArray

__all__ = ["FINE_BITS", "HAZARD_BITS", "HAZARD_LIMIT", "HAZARD_TOP", "LOG_BITS", "PROBABILITY_BITS", "tables"]

HAZARD_BITS = 20
PROBABILITY_BITS = 30
FINE_BITS = 12
"""exp(-h) is the product of an entry for the high bits of h and one for its low 12 bits."""
HAZARD_LIMIT = 4 << HAZARD_BITS
"""A gap is broken here, so that one unit of hazard stays at least 18 units of probability."""
HAZARD_TOP = 10 << HAZARD_BITS
"""Largest argument of the survival function; a single element's hazard is at most HAZARD_TOP - HAZARD_LIMIT."""
LOG_BITS = 10
"""The logarithm of a mantissa is interpolated between 2**10 entries, in units of 2**-30 nats."""

_CONTEXT = Context(prec=40, rounding=ROUND_HALF_EVEN)


@functools.cache
def tables() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Coarse and fine survival tables and the logarithm table; made once per process."""
    coarse = _exponentials(1 << FINE_BITS, (HAZARD_TOP >> FINE_BITS) + 1)
    fine = _exponentials(1, 1 << FINE_BITS)
    logarithms = [
        _scaled((1 + Decimal(index) / (1 << LOG_BITS)).ln(_CONTEXT), 30)
        for index in range((1 << LOG_BITS) + 1)
    ]
    return coarse, fine, np.array(logarithms, np.int64)


def _exponentials(step: int, count: int) -> NDArray[np.int64]:
    unit = Decimal(-step) / (1 << HAZARD_BITS)
    values = [_scaled((unit * index).exp(_CONTEXT), PROBABILITY_BITS) for index in range(count)]
    return np.array(values, np.int64)


def _scaled(value: Decimal, bits: int) -> int:
    return int((value * (1 << bits)).to_integral_value(ROUND_HALF_EVEN))
