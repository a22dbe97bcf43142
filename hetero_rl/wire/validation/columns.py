"""Checks of whole columns at tens of millions of elements per second, without numpy.

Python objects for every element would cost 20 to 50 ns each. Up to Python 3.12 the standard library has a loop in C that finds
the smallest and the largest of 32-bit elements, made for sound samples, at 1 ns each. A float32 below 0 and finite, or -0, is a
32-bit integer of at most `_LARGEST_NEGATIVE`, so this loop tells for both kinds of columns whether anything is wrong.
Where it is missing, and to find what is wrong, two other ways look at many elements at once:

- Ids: a block of the column is one big integer whose 32-bit lanes are the elements. Adding 2^31 - bound to every lane
  sets the lane's top bit exactly where the element is not below the bound; a negative element has it set already.
- Log-probabilities: the top byte of a float32 is the sign and seven bits of the exponent. 0x80 to 0xFE means negative or
  -0, and finite. 0x00 may be +0; lanes tell it from a positive number. Anything else needs a look at the number itself.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator

from hetero_rl.wire.columns import float32_view, int32_view

__all__ = ["aligned_positions", "first_not_below", "first_not_log_prob", "first_not_mask"]


def _extremes() -> Callable[[bytes, int], tuple[int, int]] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from audioop import minmax
        except ImportError:
            return None
    return minmax


_minmax = _extremes()
_LARGEST_NEGATIVE = -(2**23) - 1
"""The bits of the finite float32 that is farthest below 0."""

_LANES = 1024
_BLOCK_BYTES = 4 * _LANES
_TOP_BITS = int.from_bytes(b"\x00\x00\x00\x80" * _LANES, "little")
_OTHER_BITS = int.from_bytes(b"\xff\xff\xff\x7f" * _LANES, "little")
_SURELY_NEGATIVE = bytes(range(0x80, 0xFF))


def first_not_below(column: bytes, bound: int) -> int | None:
    """Position of the first int32 that is negative or not below `bound`; None when there is none.

    Args:
        column: int32 elements.
        bound: 1 to 2^31.
    """
    if _minmax is not None:
        least, most = _minmax(column, 4)
        if least >= 0 and most < bound:
            return None
    distance = _distance(bound)
    for start in range(0, len(column), _BLOCK_BYTES):
        block = column[start : start + _BLOCK_BYTES]
        lanes = int.from_bytes(block, "little")
        # A short last block reads as lanes of zeros behind its end, and zero is below any bound.
        if (lanes | (lanes + distance)) & _TOP_BITS:
            inside = next(
                position for position, value in enumerate(int32_view(block)) if not 0 <= value < bound
            )
            return start // 4 + inside
    return None


@functools.lru_cache(maxsize=16)
def _distance(bound: int) -> int:
    """Lanes that hold 2^31 - bound: a run has one vocabulary."""
    return int.from_bytes((2**31 - bound).to_bytes(4, "little") * _LANES, "little")


def first_not_log_prob(column: bytes) -> int | None:
    """Position of the first float32 that is NaN, infinite or above 0; None when there is none. Both zeros pass.

    Args:
        column: float32 elements.
    """
    if _minmax is not None and _minmax(column, 4)[1] <= _LARGEST_NEGATIVE:
        return None
    unsure = column[3::4].translate(None, _SURELY_NEGATIVE)
    if not unsure or (not unsure.strip(b"\x00") and not _has_positive(column)):
        # Negative and finite throughout, or with elements among them that are exactly +0.
        return None
    for position, value in enumerate(float32_view(column)):
        if not -math.inf < value <= 0:
            return position
    return None


def _has_positive(column: bytes) -> bool:
    """Whether an element has its sign bit clear and any other bit set."""
    for start in range(0, len(column), _BLOCK_BYTES):
        lanes = int.from_bytes(column[start : start + _BLOCK_BYTES], "little")
        nonzero = ((lanes & _OTHER_BITS) + _OTHER_BITS) & _TOP_BITS
        if nonzero & lanes != nonzero:
            return True
    return False


def first_not_mask(column: bytes) -> int | None:
    """Position of the first byte that is neither 0 nor 1; None when there is none."""
    others = column.translate(None, b"\x00\x01")
    return column.index(others[:1]) if others else None


def aligned_positions(column: bytes, value: int) -> Iterator[int]:
    """Positions of an int32 value in a column, ascending."""
    pattern = value.to_bytes(4, "little", signed=True)
    found = column.find(pattern)
    while found >= 0:
        position, offset = divmod(found, 4)
        if not offset:
            yield position
        found = column.find(pattern, found + 4 if not offset else found + 1)
