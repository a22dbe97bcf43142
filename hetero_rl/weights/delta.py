"""The delta codec: one tensor's change against its old bits, lossless for every bit pattern. Needs numpy and numba.

A change is a signed number of representable values on the ordered view of the bits, where -0 and +0, infinities and
every NaN are values like others. Where and how far elements change is entropy coded given the exponent that both sides
hold (`hetero_rl.weights.pieces`), under statistics that both sides gather from the tensors before.

Coded tensor, little-endian: nothing when nothing changed; else one byte that says how:

    0  the new bytes as they are
    1  for each 2^21 elements, the last ones too: 4 bytes, and if they are not 0, that many 32-bit words:
       bits 0 to 27 the number of words, bits 28 to 31 the binary logarithm of the number of lanes;
       0 says that nothing changed there
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hetero_rl.errors import DamagedError
from hetero_rl.weights import comparison, decoders, pieces, sender
from hetero_rl.weights.learned import LAYOUTS, Bits, Layout, Learned
from hetero_rl.wire.messages import DataType

__all__ = [
    "GROUP_ELEMENTS",
    "Changes",
    "DeltaCoder",
    "bits_of",
    "compare_bits",
    "compile_decoder",
]

GROUP_ELEMENTS = 2**26
"""Statistics start anew after this many elements, so that groups of tensors can be decoded side by side."""
SEGMENT_ELEMENTS = 2**21
"""Elements coded together: bounds the memory that the symbols of a segment take."""

_RAW = b"\x00"
"""How: the new bytes as they are; statistics start anew."""
_STEPS = b"\x01"
"""How: gaps and steps."""
_HEADER_BYTES = 4
_WORDS_BITS = 28
_COMPARED_ELEMENTS = 2**18
_CHANGES_PER_LANE = 512
"""A lane costs about four bytes, so few changes share few lanes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """The elements of a tensor that differ: k flat positions, ascending, and their new bits."""

    positions: NDArray[np.int64]
    bits: Bits


def bits_of(data_type: DataType, data: memoryview) -> Bits:
    """The elements of raw bytes as unsigned integers of the same size, in place."""
    return np.frombuffer(data, np.dtype(f"<u{data_type.item_size}"))


def compare_bits(old: Bits, new: Bits) -> Changes:
    """What differs between two arrays of one size."""
    if old.itemsize not in {2, 4}:  # not worth compiling for: whole tensors are sent
        found = np.flatnonzero(old != new)
        return Changes(found, new[found])
    # Buffers for all of a large tensor would be fresh memory each time, which costs more than the comparison.
    room = min(old.size, _COMPARED_ELEMENTS)
    index, bits = np.empty(room, np.int64), np.empty(room, old.dtype)
    parts = [(index[:0], bits[:0])]
    for start in range(0, old.size, _COMPARED_ELEMENTS):
        stop = min(start + _COMPARED_ELEMENTS, old.size)
        found = comparison.find_changes(old, new, start, stop, index, bits)
        parts.append((index[:found].copy(), bits[:found].copy()))
    return Changes(*map(np.concatenate, zip(*parts, strict=True)))


def compile_decoder(data_type: DataType) -> None:
    """Compiles what decoding a type takes, which is seconds the first time in an installation; types that are sent whole need none."""
    if data_type in LAYOUTS:
        decoders.fastest(data_type)


class DeltaCoder:
    """One end of a delta. Both ends give it the tensors of a version in the same order, changed or not."""

    def __init__(self) -> None:
        self._statistics: dict[DataType, Learned] = {}
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
        if data_type in LAYOUTS:
            coded = self._encode_steps(data_type, old, changes)
            if coded is not None:
                return coded
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
        coded = _Coded(data_type, bits.size, payload.nbytes, _reader(payload))
        for _ in self._parts(coded, bits, list):
            pass

    def decode_arriving(
        self, data_type: DataType, bits: Bits, size: int, read: Callable[[int, int], memoryview]
    ) -> Iterator[int]:
        """`decode` of a payload that may still be on its way; says after each part how many elements are new from the first on.

        Args:
            data_type: Element type.
            bits: Writable bits, n of them; old before, new after.
            size: Bytes of the payload.
            read: Gives bytes of the payload from an offset, waiting for them; never asked beyond its end.

        Raises:
            DamagedError: The payload cannot come from `encode`; bits may have been changed.
        """
        one_part = bits.size <= SEGMENT_ELEMENTS and size > 0
        reader = _reader(read(0, size)) if one_part else read
        return self._parts(_Coded(data_type, bits.size, size, reader), bits, iter)

    def _parts(
        self, coded: "_Coded", bits: Bits, order: Callable[[Iterator["_Segment"]], Iterable["_Segment"]]
    ) -> Iterator[int]:
        """Applies a coded tensor part by part; `order` says whether all parts are looked at before the first is applied."""
        self._count(bits.size)
        how = coded.how()
        if how == _RAW:
            self._statistics.pop(coded.data_type, None)
            bits[:] = bits_of(coded.data_type, coded.raw())
        elif how == _STEPS:
            layout, statistics = LAYOUTS[coded.data_type], self._statistics_of(coded.data_type)
            for segment in order(coded.segments()):
                if segment.words.size:
                    decode = decoders.fastest(coded.data_type)
                    decode(
                        bits[segment.start : segment.start + SEGMENT_ELEMENTS], segment.words, segment.lanes,
                        layout.exponent_shift, layout.sign, *statistics.arrays(),
                    )  # fmt: skip
                yield min(segment.start + SEGMENT_ELEMENTS, bits.size)
            return
        yield bits.size

    def _encode_steps(self, data_type: DataType, old: Bits, changes: Changes) -> bytes | None:
        """The coded segments; None when they would be no shorter than the new bytes."""
        layout, statistics = LAYOUTS[data_type], self._statistics_of(data_type)
        starts = range(0, old.size, SEGMENT_ELEMENTS)
        bounds = np.searchsorted(changes.positions, [*starts, old.size])
        parts, left = [_STEPS], old.nbytes
        for number, start in enumerate(starts):
            chosen = slice(bounds[number], bounds[number + 1])
            coded = b""
            if chosen.start < chosen.stop:
                here = old[start : start + SEGMENT_ELEMENTS]
                index = changes.positions[chosen] - start
                coded = _encode_segment(layout, statistics, here, index, changes.bits[chosen], left)
            left -= len(coded) + _HEADER_BYTES
            if left < 0:
                return None
            parts.append(coded or bytes(_HEADER_BYTES))
        return b"".join(parts)

    def _statistics_of(self, data_type: DataType) -> Learned:
        if data_type not in self._statistics:
            self._statistics[data_type] = Learned(LAYOUTS[data_type])
        return self._statistics[data_type]

    def _count(self, elements: int) -> None:
        if self._elements >= GROUP_ELEMENTS:
            self._statistics.clear()
            self._elements = 0
        self._elements += elements


def _encode_segment(
    layout: Layout, statistics: Learned, old: Bits, index: NDArray[np.int64], new: Bits, limit: int
) -> bytes:
    """A segment with its header; longer than `limit` when there is no room for it."""
    log_lanes = min(int(index.size) // _CHANGES_PER_LANE or 1, pieces.MOST_LANES).bit_length() - 1
    lanes = 1 << log_lanes
    symbols = statistics.symbols(pieces.SYMBOLS_PER_CHANGE * (index.size + lanes) + old.size // 8 + 1024)
    noted = sender.note(
        old, index, new, symbols, lanes, layout.exponent_shift, layout.sign, *statistics.arrays()
    )
    words = np.empty(min(noted + 2 * lanes, limit // 4) + 2, np.uint32)
    start = sender.write(symbols[:noted], lanes, statistics.table, words) if noted >= 0 else -1
    if start < 0:
        return bytes(limit + 1)
    coded = words[start:]
    return (coded.size | log_lanes << _WORDS_BITS).to_bytes(_HEADER_BYTES, "little") + coded.tobytes()


@dataclasses.dataclass(frozen=True, slots=True)
class _Segment:
    """A part of a tensor: its first element, its words and zeros after them; no words where nothing changes."""

    start: int
    words: NDArray[np.uint32]
    lanes: int


_NO_WORDS = np.zeros(0, np.uint32)


def _reader(payload: memoryview) -> Callable[[int, int], memoryview]:
    """Reads what is all there."""
    return lambda start, size: payload[start : start + size]


@dataclasses.dataclass(frozen=True, slots=True)
class _Coded:
    """A coded tensor, of which only what is there may be read."""

    data_type: DataType
    elements: int
    size: int
    read: Callable[[int, int], memoryview]

    def how(self) -> bytes:
        """The byte that says how it is coded; none when nothing changed."""
        if not self.size:
            return b""
        how = bytes(self.read(0, 1))
        raw = how == _RAW and self.size == 1 + self.elements * self.data_type.item_size
        if not raw and (how != _STEPS or not self.elements or self.data_type not in LAYOUTS):
            raise self._damaged(how)
        return how

    def raw(self) -> memoryview:
        """The new bytes."""
        return self.read(1, self.size - 1)

    def segments(self) -> Iterator[_Segment]:
        """The segments, in order."""
        position = 1
        for start in range(0, self.elements, SEGMENT_ELEMENTS):
            if self.size < position + _HEADER_BYTES:
                raise self._damaged(_STEPS)
            header = int.from_bytes(self.read(position, _HEADER_BYTES), "little")
            size, lanes = header & ((1 << _WORDS_BITS) - 1), 1 << (header >> _WORDS_BITS)
            position += _HEADER_BYTES
            if not header:
                yield _Segment(start, _NO_WORDS, lanes)
                continue
            if lanes > pieces.MOST_LANES or size < 2 * lanes or self.size < position + 4 * size:
                raise self._damaged(_STEPS)
            words = np.zeros(size + pieces.WORDS_AHEAD, np.uint32)
            words[:size] = np.frombuffer(self.read(position, 4 * size), "<u4")
            yield _Segment(start, words, lanes)
            position += 4 * size
        if position != self.size:
            raise self._damaged(_STEPS)

    def _damaged(self, how: bytes) -> DamagedError:
        return DamagedError(
            f"{self.size - 1} bytes of kind {how[0]} are no delta of {self.elements} {self.data_type.name} elements"
        )
