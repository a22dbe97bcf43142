"""Columns on the wire: little-endian elements, or one DEFLATE-coded plane for each byte of the element.

The bytes of a column of ids or log-probabilities differ in kind: the high bytes repeat, the low ones of a mantissa are
noise. Split into planes, the high ones shrink and the low ones are stored. `proto/hetero_rl/v1/columns.proto` is the
specification. Only the standard library is used; slices with a stride do the splitting and the joining.
"""

import enum
import struct
import zlib

from hetero_rl.v1 import columns_pb2
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import DataType

__all__ = [
    "MAX_COLUMN_BYTES",
    "ColumnEncoding",
    "decode_column",
    "encode_column",
    "fill_column",
    "plain_data",
]

MAX_COLUMN_BYTES = 2**26
"""Largest decoded column that is ever accepted, whatever the caller's own limit is."""

_PLANE_HEADER = struct.Struct("<BI")
_STORED, _DEFLATED = 0, 1
_RAW_DEFLATE_BITS = -15
_MEMORY_LEVEL = 6
_SAMPLE_BYTES = 512
_WORTHWHILE = 0.9
_CLEARLY = 0.8


class ColumnEncoding(enum.IntEnum):
    """How the elements of a column are laid out."""

    RAW = 1
    """Elements one after another; for a fast link, costs one copy."""
    BYTE_PLANES = 2
    """Byte planes, each deflated where that makes it smaller; for a slow link."""


_RAW = int(ColumnEncoding.RAW)


def encode_column(
    data: bytes, data_type: DataType, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> columns_pb2.Column:
    """Packs a column for the wire; see `fill_column`."""
    column = columns_pb2.Column()
    fill_column(column, data, data_type, encoding)
    return column


def fill_column(
    column: columns_pb2.Column, data: bytes, data_type: DataType, encoding: ColumnEncoding
) -> None:
    """Packs a column into its place in a larger message, which saves a copy.

    Args:
        column: An empty message.
        data: Little-endian elements, a whole number of them.
        data_type: Type of the elements.
        encoding: Layout on the wire.
    """
    item_size = data_type.item_size
    length, rest = divmod(len(data), item_size)
    if rest:
        raise ValueError(f"a {data_type.name} column of {len(data)} bytes is not a whole number of elements")
    column.data_type = getattr(columns_pb2, f"DATA_TYPE_{data_type.name}")
    column.encoding = getattr(columns_pb2, f"COLUMN_ENCODING_{encoding.name}")
    column.length = length
    column.data = data if encoding is ColumnEncoding.RAW else _encode_planes(data, item_size)


def decode_column(
    column: columns_pb2.Column, data_type: DataType, field: str, *, max_elements: int | None = None
) -> bytes:
    """Unpacks a column that came over the network; every size is checked before memory is taken.

    Args:
        column: The message; may be hostile.
        data_type: The only type that is accepted.
        field: Name of the column in error messages.
        max_elements: Most elements accepted; `MAX_COLUMN_BYTES` bounds it in any case.

    Raises:
        InvalidMessageError: Another type, an unknown encoding, too many elements, or bytes that do not decode to
            exactly the declared length.
    """
    if int(column.data_type) != data_type:
        raise invalid(
            f"{field}.data_type", f"is {int(column.data_type)}, expected {data_type.name} ({data_type.value})"
        )
    _check_length(column.length, data_type.item_size, field, max_elements)
    encoding = int(column.encoding)
    if encoding == ColumnEncoding.RAW:
        return _decode_raw(column, data_type.item_size, field)
    if encoding == ColumnEncoding.BYTE_PLANES:
        return _decode_planes(column, data_type.item_size, field)
    raise invalid(f"{field}.encoding", f"is {encoding}, known are RAW (1) and BYTE_PLANES (2)")


def plain_data(column: columns_pb2.Column, size: int) -> bytes | None:
    """The bytes of a column that is laid out raw and has exactly `size` of them; None for any other, which needs a closer look."""
    if column.encoding != _RAW or size > MAX_COLUMN_BYTES:
        return None
    data = column.data
    return data if len(data) == size else None


def _check_length(length: int, item_size: int, field: str, max_elements: int | None) -> None:
    most = MAX_COLUMN_BYTES // item_size
    if max_elements is not None:
        most = min(most, max_elements)
    if length > most:
        raise invalid(f"{field}.length", f"is {length}, at most {most} elements are accepted", "TOO_LARGE")


def _encode_planes(data: bytes, item_size: int) -> bytes:
    parts = []
    for index in range(item_size):
        plane = data[index::item_size]
        kind, payload = _encode_plane(plane)
        parts += [_PLANE_HEADER.pack(kind, len(payload)), payload]
    return b"".join(parts)


def _encode_plane(plane: bytes) -> tuple[int, bytes]:
    """Deflates a plane if a sample from its middle says that it is worth a pass: the low bytes of a mantissa are noise."""
    middle = max(0, (len(plane) - _SAMPLE_BYTES) // 2)
    sample = plane[middle : middle + _SAMPLE_BYTES]
    by_runs = len(_deflate(sample, zlib.Z_RLE))
    if by_runs < _WORTHWHILE * len(sample):
        by_frequency = len(_deflate(sample, zlib.Z_HUFFMAN_ONLY))
        runs = by_runs < _CLEARLY * by_frequency
        coded = _deflate(plane, zlib.Z_RLE if runs else zlib.Z_HUFFMAN_ONLY)
        if len(coded) < len(plane):
            return _DEFLATED, coded
    return _STORED, plane


def _deflate(plane: bytes, strategy: int) -> bytes:
    # Neighbouring elements of a plane are nearly independent: runs, or the frequencies of symbols alone, carry what there
    # is to gain, and looking for longer matches costs several times the time. Without matches the coder's tables may be
    # small, and making them is most of the cost of a short plane.
    coder = zlib.compressobj(1, zlib.DEFLATED, _RAW_DEFLATE_BITS, _MEMORY_LEVEL, strategy)
    return coder.compress(plane) + coder.flush()


def _decode_raw(column: columns_pb2.Column, item_size: int, field: str) -> bytes:
    data = column.data
    if len(data) != column.length * item_size:
        raise invalid(
            f"{field}.data", f"has {len(data)} bytes, expected {column.length} elements of {item_size} bytes"
        )
    return data


def _decode_planes(column: columns_pb2.Column, item_size: int, field: str) -> bytes:
    planes = _split_planes(column.data, item_size, field)
    decoded = bytearray(column.length * item_size)
    for index, (kind, payload) in enumerate(planes):
        plane = _decode_plane(kind, payload, column.length, f"{field}.data plane {index}")
        decoded[index::item_size] = plane
    return bytes(decoded)


def _split_planes(data: bytes, item_size: int, field: str) -> list[tuple[int, memoryview]]:
    planes = []
    view, position = memoryview(data), 0
    for index in range(item_size):
        if position + _PLANE_HEADER.size > len(view):
            raise invalid(f"{field}.data", f"ends before the header of plane {index}")
        kind, size = _PLANE_HEADER.unpack_from(view, position)
        position += _PLANE_HEADER.size
        if size > len(view) - position:
            raise invalid(
                f"{field}.data", f"plane {index} says {size} bytes, {len(view) - position} are left"
            )
        planes.append((kind, view[position : position + size]))
        position += size
    if position != len(view):
        raise invalid(f"{field}.data", f"has {len(view) - position} bytes behind the last plane")
    return planes


def _decode_plane(kind: int, payload: memoryview, length: int, field: str) -> bytes | memoryview:
    if kind == _STORED:
        if len(payload) != length:
            raise invalid(field, f"stores {len(payload)} bytes, expected {length}")
        return payload
    if kind != _DEFLATED:
        raise invalid(field, f"has kind {kind}, known are 0 (stored) and 1 (deflated)")
    decoder = zlib.decompressobj(_RAW_DEFLATE_BITS)
    try:
        # One byte more than may come: an honest stream then ends inside the limit, a bomb fills it and is refused.
        plane = decoder.decompress(payload, length + 1)
    except zlib.error as error:
        raise invalid(field, f"is not a DEFLATE stream: {error}") from error
    if len(plane) != length or not decoder.eof or decoder.unused_data or decoder.unconsumed_tail:
        raise invalid(field, f"does not decode to exactly {length} bytes")
    return plane
