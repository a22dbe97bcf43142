"""Full copies in byte planes: the exponents of a tensor, Huffman coded, apart from its signs and mantissas. Needs numpy.

Exponents of a trained layer take 2.6 to 2.8 of their 8 bits; signs and mantissas do not compress and stay as they are.
The Huffman coder is zlib's, which every Python has.

Coded tensor: one byte that says how; for planes, 8 bytes with the size of the coded exponents, these, the rest.
"""

import dataclasses
import zlib

import numpy as np
from numpy.typing import NDArray

from hetero_rl.errors import DamagedError
from hetero_rl.wire.messages import DataType

__all__ = ["decode_planes", "encode_planes"]

_RAW = b"\x00"
_PLANES = b"\x01"
_SIZE_BYTES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """How the bits of an element part: 8 bits that compress, shifted down, and the others below and above them."""

    bits: int
    shift: int


_LAYOUTS = {
    DataType.BFLOAT16: _Layout(16, 7),
    DataType.FLOAT16: _Layout(16, 8),
    DataType.FLOAT32: _Layout(32, 23),
}


def encode_planes(data_type: DataType, data: memoryview) -> bytes:
    """Codes the raw bytes of one tensor; never more than one byte longer than they are."""
    if data_type in _LAYOUTS and data.nbytes:
        layout = _LAYOUTS[data_type]
        elements = np.frombuffer(data, f"<u{layout.bits // 8}")
        exponents = (elements >> layout.shift).astype(np.uint8)
        coder = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
        coded = coder.compress(exponents.data) + coder.flush()
        size = len(coded) + _SIZE_BYTES + elements.size * (layout.bits // 8 - 1)
        if size < data.nbytes:
            length = len(coded).to_bytes(_SIZE_BYTES, "little")
            return _PLANES + length + coded + _rest_of(elements, layout).tobytes()
    return _RAW + bytes(data)


def decode_planes(data_type: DataType, payload: memoryview, size: int) -> memoryview:
    """The raw bytes of one tensor, `size` of them; memory is bounded by that whatever the payload says.

    Raises:
        DamagedError: The payload cannot come from `encode_planes`.
    """
    how, coded = bytes(payload[:1]), payload[1:]
    if how == _RAW and coded.nbytes == size:
        return coded
    if how != _PLANES or data_type not in _LAYOUTS or coded.nbytes < _SIZE_BYTES:
        raise DamagedError(f"{payload.nbytes} bytes are no planes of {size} bytes of {data_type.name}")
    layout = _LAYOUTS[data_type]
    width = layout.bits // 8
    split = _SIZE_BYTES + int.from_bytes(coded[:_SIZE_BYTES], "little")
    elements = size // width
    if coded.nbytes != split + elements * (width - 1):
        raise DamagedError(f"{payload.nbytes} bytes are no planes of {size} bytes of {data_type.name}")
    exponents = _inflate(coded[_SIZE_BYTES:split], elements)
    rest = np.frombuffer(coded[split:], np.uint8).reshape(width - 1, elements)
    return _joined(exponents, rest, layout)


def _rest_of(elements: NDArray[np.unsignedinteger], layout: _Layout) -> NDArray[np.uint8]:
    """What is not in the 8 bits, closed up and byte by byte: [width - 1, n]."""
    below = elements & ((1 << layout.shift) - 1)
    above = (
        elements >> min(layout.shift + 8, layout.bits - 1) if layout.shift + 8 < layout.bits else 0 * elements
    )
    closed = below | (above << layout.shift)
    return np.stack([(closed >> (8 * byte)).astype(np.uint8) for byte in range(layout.bits // 8 - 1)])


def _joined(exponents: NDArray[np.uint8], rest: NDArray[np.uint8], layout: _Layout) -> memoryview:
    elements = np.zeros(exponents.size, f"<u{layout.bits // 8}")
    for byte, plane in enumerate(rest):
        elements |= plane.astype(elements.dtype) << (8 * byte)
    below = elements & ((1 << layout.shift) - 1)
    if layout.shift + 8 < layout.bits:
        below |= (elements >> layout.shift) << (layout.shift + 8)
    joined = below | (exponents.astype(elements.dtype) << layout.shift)
    return memoryview(joined.view(np.uint8))  # type: ignore[arg-type]  # numpy's arrays are buffers


def _inflate(coded: memoryview, size: int) -> NDArray[np.uint8]:
    decoder = zlib.decompressobj(-15)
    try:
        exponents = decoder.decompress(coded, size + 1)
    except zlib.error as error:
        raise DamagedError(f"exponents are not coded as they should be: {error}") from error
    if len(exponents) != size or not decoder.eof:
        raise DamagedError(f"{len(coded)} coded bytes do not hold {size} exponents")
    return np.frombuffer(exponents, np.uint8)
