"""Numeric columns as immutable bytes, without numpy: the hub runs on the standard library.

A column holds little-endian elements of one type. `Int32Bytes` and the other names below are plain `bytes` to the
interpreter; the names let a type checker keep a column of ids away from a column of log-probabilities.
numpy and torch read them without a copy: `np.frombuffer(column, np.int32)`.

Example:
    >>> ids = int32_column([5, 7])
    >>> list(int32_view(ids)), count(ids, 4)
    ([5, 7], 2)
"""

import array
import contextlib
import struct
import sys
from collections.abc import Iterable
from typing import NewType

Int32Bytes = NewType("Int32Bytes", bytes)
Float32Bytes = NewType("Float32Bytes", bytes)
UInt8Bytes = NewType("UInt8Bytes", bytes)

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("hetero-rl reads its columns in place and needs a little-endian machine")


def int32_column(values: Iterable[int]) -> Int32Bytes:
    """Packs integers into an int32 column; raises OverflowError when one does not fit. A list is fastest."""
    if isinstance(values, list | tuple):
        try:
            return Int32Bytes(struct.pack(f"{len(values)}i", *values))
        except struct.error as error:
            raise OverflowError(f"an element does not fit in 32 bits: {error}") from error
    return Int32Bytes(array.array("i", values).tobytes())


def float32_column(values: Iterable[float]) -> Float32Bytes:
    """Packs numbers into a float32 column; those beyond its range become infinite. A list is fastest."""
    if isinstance(values, list | tuple):
        with contextlib.suppress(OverflowError):
            return Float32Bytes(struct.pack(f"{len(values)}f", *values))
    return Float32Bytes(array.array("f", values).tobytes())


def int32_view(column: bytes) -> "memoryview[int]":
    """Reads an int32 column in place."""
    return memoryview(column).cast("i")


def float32_view(column: bytes) -> "memoryview[float]":
    """Reads a float32 column in place."""
    return memoryview(column).cast("f")


def count(column: bytes, item_size: int) -> int:
    """Number of elements of `item_size` bytes; raises ValueError when the column does not divide."""
    elements, rest = divmod(len(column), item_size)
    if rest:
        raise ValueError(
            f"a column of {len(column)} bytes is not a whole number of {item_size}-byte elements"
        )
    return elements
