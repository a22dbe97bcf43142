"""Columns: hand-made bytes, honest round trips, and input that lies about its size."""

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_rl.errors import InvalidMessageError
from hetero_rl.v1 import columns_pb2
from hetero_rl.wire.column_codec import MAX_COLUMN_BYTES, ColumnEncoding, decode_column, encode_column
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import DataType

STORED, DEFLATED = 0, 1


def plane(kind, payload):
    return struct.pack("<BI", kind, len(payload)) + payload


def deflate(data):
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()


def planes_column(length, *planes, data_type=DataType.UINT8):
    return columns_pb2.Column(data_type=data_type, encoding=2, length=length, data=b"".join(planes))


def test_a_raw_column_is_its_little_endian_bytes():
    column = encode_column(int32_column([1, 256, -1]), DataType.INT32)
    assert column.data == bytes.fromhex("01000000 00010000 ffffffff")
    assert (column.length, int(column.data_type), int(column.encoding)) == (3, 3, 1)


def test_byte_planes_hold_the_least_significant_bytes_first():
    column = encode_column(int32_column([1, 256]), DataType.INT32, ColumnEncoding.BYTE_PLANES)
    header = "00 02000000"
    assert column.data == bytes.fromhex(f"{header} 0100 {header} 0001 {header} 0000 {header} 0000")


def test_a_plane_of_one_value_shrinks_to_a_few_bytes():
    column = encode_column(bytes(100_000), DataType.UINT8, ColumnEncoding.BYTE_PLANES)
    assert column.data[0] == DEFLATED
    assert len(column.data) < 500


def test_a_plane_of_noise_is_stored():
    noise = b"".join(struct.pack("<Q", pow(3, k, 2**64 - 59)) for k in range(2000))
    column = encode_column(noise, DataType.UINT8, ColumnEncoding.BYTE_PLANES)
    assert column.data == plane(STORED, noise)


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=300) | st.binary(min_size=1, max_size=4).map(lambda seed: seed * 3000),
    data_type=st.sampled_from(DataType),
    encoding=st.sampled_from(ColumnEncoding),
)
def test_every_column_decodes_to_what_was_encoded(data, data_type, encoding):
    data = data[: len(data) // data_type.item_size * data_type.item_size]
    column = columns_pb2.Column.FromString(encode_column(data, data_type, encoding).SerializeToString())
    assert decode_column(column, data_type, "c") == data


def test_a_column_that_is_not_a_whole_number_of_elements_is_not_encoded():
    with pytest.raises(ValueError, match="5 bytes"):
        encode_column(bytes(5), DataType.INT32)


HOSTILE = {
    "another data type": (columns_pb2.Column(data_type=3, encoding=1, length=1, data=bytes(4)), "data_type"),
    "no data type": (columns_pb2.Column(encoding=1, length=1, data=b"a"), "data_type"),
    "no encoding": (columns_pb2.Column(data_type=1, length=1, data=b"a"), "encoding"),
    "an unknown encoding": (columns_pb2.Column.FromString(b"\x08\x01\x10\x63\x18\x01"), "encoding is 99"),
    "more elements than any column may have": (planes_column(2**32 - 1, b""), "length is 4294967295"),
    "more raw elements than bytes": (
        columns_pb2.Column(data_type=1, encoding=1, length=9, data=b"a"),
        "1 bytes",
    ),
    "no header": (planes_column(3, b"\x00"), "before the header of plane 0"),
    "a plane that goes on behind the end": (planes_column(3, b"\x00\xff\xff\xff\xff"), "plane 0 says"),
    "bytes behind the last plane": (planes_column(1, plane(STORED, b"a"), b"x"), "1 bytes behind"),
    "a stored plane of another size": (planes_column(3, plane(STORED, b"a")), "stores 1 bytes"),
    "an unknown kind of plane": (planes_column(1, plane(7, b"a")), "kind 7"),
    "no deflate stream": (planes_column(3, plane(DEFLATED, b"\xff\xff\xff")), "not a DEFLATE stream"),
    "a stream that decodes to less": (planes_column(9, plane(DEFLATED, deflate(b"abc"))), "exactly 9 bytes"),
    "a stream that decodes to more": (planes_column(2, plane(DEFLATED, deflate(b"abc"))), "exactly 2 bytes"),
    "a stream without an end": (planes_column(3, plane(DEFLATED, deflate(b"abc")[:-1])), "exactly 3 bytes"),
    "bytes behind the stream": (planes_column(3, plane(DEFLATED, deflate(b"abc") + b"x")), "exactly 3 bytes"),
    "a stream where nothing belongs": (planes_column(0, plane(DEFLATED, deflate(b"abc"))), "exactly 0 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_column_is_refused_for(case):
    column, words = HOSTILE[case]
    with pytest.raises(InvalidMessageError, match=words) as caught:
        decode_column(column, DataType.UINT8, "Batch.c")
    assert caught.value.field.startswith("Batch.c")


def test_a_column_longer_than_the_caller_accepts_is_refused_as_too_large():
    column = encode_column(bytes(11), DataType.UINT8)
    assert decode_column(column, DataType.UINT8, "c", max_elements=11) == bytes(11)
    with pytest.raises(InvalidMessageError, match="at most 10") as caught:
        decode_column(column, DataType.UINT8, "c", max_elements=10)
    assert caught.value.reason == "TOO_LARGE"


def test_a_decompression_bomb_is_refused_before_it_takes_memory():
    bomb = plane(DEFLATED, deflate(bytes(MAX_COLUMN_BYTES)))
    small = planes_column(1000, bomb)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessageError, match="exactly 1000 bytes"):
            decode_column(small, DataType.UINT8, "c")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
