"""Chunks of a blob as bytes on the wire, without a message object between: each object would copy the bytes once more.

The bytes are those of `FetchBlobResponse`: field 1, the offset, then field 2, the data. What comes in another order, or
with other fields, is read by the protocol's own parser.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from hetero_rl.errors import InvalidMessageError
from hetero_rl.v1 import weight_service_pb2

__all__ = ["decode_chunk", "decode_following", "encode_chunk", "encode_following", "message_or_bytes"]

_OFFSET_TAG = 0x08
_DATA_TAG = 0x12
_CHUNK_TAG = 0x1A
_MOST_VARINT_BYTES = 10


def encode_chunk(offset: int, data: bytes | memoryview) -> bytes:
    """The bytes of a `FetchBlobResponse`."""
    head = bytes([_OFFSET_TAG]) + _varint(offset) if offset else b""
    return b"".join((head, bytes([_DATA_TAG]), _varint(len(data)), data))


def decode_chunk(message: bytes | memoryview) -> tuple[int, memoryview]:
    """Offset and data of the bytes of a `FetchBlobResponse`, the data in place.

    Raises:
        InvalidMessageError: They are no such message.
    """
    offset, at = 0, 0
    if message[:1] == bytes([_OFFSET_TAG]):
        offset, at = _read_varint(message, 1)
    if (at and message[at : at + 1] == bytes([_DATA_TAG])) or message[:1] == bytes([_DATA_TAG]):
        size, at = _read_varint(message, at + 1)
        if at and at + size == len(message):
            return offset, memoryview(message)[at:]
    try:
        parsed = weight_service_pb2.FetchBlobResponse.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidMessageError(f"{len(message)} bytes are no FetchBlobResponse") from error
    return parsed.offset, memoryview(parsed.data)


def encode_following(chunk: bytes) -> bytes:
    """The bytes of a `FollowVersionResponse` with a chunk that is coded already."""
    return b"".join((bytes([_CHUNK_TAG]), _varint(len(chunk)), chunk))


def decode_following(message: bytes) -> tuple[int, memoryview]:
    """Offset and data of the chunk in the bytes of a `FollowVersionResponse`, the data in place.

    Raises:
        InvalidMessageError: They are no such message, or it has no chunk.
    """
    if message[:1] == bytes([_CHUNK_TAG]):
        size, at = _read_varint(message, 1)
        if at and at + size == len(message):
            return decode_chunk(memoryview(message)[at:])
    try:
        parsed = weight_service_pb2.FollowVersionResponse.FromString(message)
    except DecodeError as error:
        raise InvalidMessageError(f"{len(message)} bytes are no FollowVersionResponse") from error
    if not parsed.HasField("chunk"):
        raise InvalidMessageError("FollowVersionResponse.chunk is missing behind the news")
    return parsed.chunk.offset, memoryview(parsed.chunk.data)


def message_or_bytes(serializer: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that lets bytes pass that are coded already."""

    def serialize(response: Any) -> bytes:
        return response if isinstance(response, bytes) else serializer(response)

    return serialize


def _varint(value: int) -> bytes:
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def _read_varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number and the position after it; position 0 when it does not end in time."""
    value = 0
    for count, byte in enumerate(message[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    return 0, 0
