"""The delta codec: one tensor's change against its old bits, lossless for every bit pattern. Needs numpy and numba.

A change is a signed number of representable values on the ordered view of the bits, where -0 and +0, infinities and
every NaN are values like others. Where and how far elements change is entropy coded given the exponent that both sides
hold (`hetero_rl.weights.kernels`), under statistics that both sides gather from the tensors before.

Coded tensor: nothing when nothing changed; else one byte that says how, then the bytes.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_rl.errors import DamagedError
from hetero_rl.weights import kernels
from hetero_rl.wire.messages import DataType

__all__ = ["GROUP_ELEMENTS", "Changes", "DeltaCoder", "bits_of", "compare_bits"]

GROUP_ELEMENTS = 2**26
"""Statistics start anew after this many elements, so that groups of tensors can be decoded side by side."""

_RAW = b"\x00"
"""How: the new bytes as they are; statistics start anew."""
_STEPS = b"\x01"
"""How: gaps and steps."""

Bits = NDArray[np.unsignedinteger[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """Where the exponent of a floating point type lies."""

    exponent_shift: int
    exponent_bits: int
    sign: int


_LAYOUTS = {
    DataType.BFLOAT16: _Layout(7, 8, 1 << 15),
    DataType.FLOAT16: _Layout(10, 5, 1 << 15),
    DataType.FLOAT32: _Layout(23, 8, 1 << 31),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """The elements of a tensor that differ: k flat positions, ascending, and their new bits."""

    positions: NDArray[np.int64]
    bits: Bits


def bits_of(data_type: DataType, data: memoryview) -> Bits:
    """The elements of raw bytes as unsigned integers of the same size, in place."""
    return np.frombuffer(data, np.dtype(f"<u{data_type.item_size}"))


def compare_bits(old: Bits, new: Bits) -> Changes:
    """What differs between two arrays of one size; pages of the buffer that are not needed are never touched."""
    if old.itemsize not in {2, 4}:  # not worth compiling for: whole tensors are sent
        found = np.flatnonzero(old != new)
        return Changes(found, new[found])
    positions = np.empty(old.size + 16, np.int64)
    found = positions[: kernels.find_changes(old, new, positions)].copy()
    return Changes(found, new[found])


class _Statistics:
    """What one end has learnt of one data type; both ends learn the same."""

    def __init__(self, layout: _Layout) -> None:
        contexts = 1 << layout.exponent_bits
        self.hazards = np.full(2 * contexts, 10_000, np.int32)  # about 1 % until the first piece is known
        self.seen = np.full(contexts, 4 * 256, np.int64)
        self.changed = np.full(contexts, 10, np.int64)
        self.odds = np.full(contexts * kernels.STEP_ODDS, kernels.EVEN_ODDS, np.int32)
        self.pieces = np.zeros(1, np.int64)
        self.counts = np.zeros(contexts, np.int64)
        self.hits = np.zeros(contexts, np.int64)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """In the order that the kernels take."""
        return self.hazards, self.seen, self.changed, self.odds, self.pieces, self.counts, self.hits


class DeltaCoder:
    """One end of a delta. Both ends give it the tensors of a version in the same order, changed or not."""

    def __init__(self) -> None:
        self._statistics: dict[DataType, _Statistics] = {}
        self._elements = 0

    def encode(self, data_type: DataType, old: Bits, changes: Changes) -> bytes:
        """Codes a tensor's changes.

        Args:
            data_type: Element type.
            old: Bits before, n of them.
            changes: What changed.
        """
        self._count(old.size)
        if not changes.positions.size:
            return b""
        if data_type in _LAYOUTS:
            layout, statistics = _LAYOUTS[data_type], self._statistics_of(data_type)
            out = np.empty(2 * old.nbytes + 256, np.uint8)
            size = kernels.encode(
                old, changes.positions, changes.bits, out,
                layout.exponent_shift, layout.sign, *statistics.arrays(),
            )  # fmt: skip
            if 0 <= size < old.nbytes:
                return _STEPS + out[:size].tobytes()
            self._statistics.pop(data_type)
        new = old.copy()
        new[changes.positions] = changes.bits
        return _RAW + new.tobytes()

    def decode(self, data_type: DataType, bits: Bits, payload: memoryview) -> None:
        """Applies a coded tensor to its old bits, in place.

        A payload that was damaged gives other bits, which their digest shows.

        Args:
            data_type: Element type.
            bits: Writable bits, n of them; old before, new after.
            payload: What `encode` returned.

        Raises:
            DamagedError: The payload cannot come from `encode`; the bits are as before.
        """
        self._count(bits.size)
        if not payload.nbytes:
            return
        how, coded = bytes(payload[:1]), payload[1:]
        if how == _RAW and coded.nbytes == bits.nbytes:
            self._statistics.pop(data_type, None)
            bits[:] = bits_of(data_type, coded)
        elif how == _STEPS and data_type in _LAYOUTS and coded.nbytes < bits.nbytes:
            layout = _LAYOUTS[data_type]
            kernels.decode(
                bits, np.frombuffer(coded, np.uint8).copy(),  # read-only bytes would be compiled for once more

                layout.exponent_shift, layout.sign, *self._statistics_of(data_type).arrays(),
            )  # fmt: skip
        else:
            raise DamagedError(
                f"{coded.nbytes} bytes of kind {how[0]} are no delta of {bits.size} {data_type.name} elements"
            )

    def _statistics_of(self, data_type: DataType) -> _Statistics:
        if data_type not in self._statistics:
            self._statistics[data_type] = _Statistics(_LAYOUTS[data_type])
        return self._statistics[data_type]

    def _count(self, elements: int) -> None:
        if self._elements >= GROUP_ELEMENTS:
            self._statistics.clear()
            self._elements = 0
        self._elements += elements
