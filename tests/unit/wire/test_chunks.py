"""Chunks of a blob are the bytes of their message, whoever wrote them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_rl.errors import InvalidMessageError
from hetero_rl.v1 import weight_service_pb2 as pb
from hetero_rl.wire.chunks import (
    decode_chunk,
    decode_following,
    encode_chunk,
    encode_following,
    message_or_bytes,
)

OFFSETS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(offset=OFFSETS, data=st.binary(max_size=300))
def test_a_chunk_is_what_the_protocols_own_parser_reads(offset, data):
    parsed = pb.FetchBlobResponse.FromString(encode_chunk(offset, data))
    assert (parsed.offset, parsed.data) == (offset, data)


@given(offset=OFFSETS, data=st.binary(max_size=300))
def test_what_the_protocols_own_writer_makes_is_read_back(offset, data):
    message = pb.FetchBlobResponse(offset=offset, data=data).SerializeToString()
    assert decode_chunk(message) == (offset, data)


def test_fields_in_another_order_and_unknown_ones_are_read():
    unknown, offset, data = b"\x1a\x02xy", b"\x08\x05", b"\x12\x03abc"
    assert decode_chunk(data + unknown + offset) == (5, b"abc")


@pytest.mark.parametrize("message", [b"\x12\x05abc", b"\x08", b"\x12", b"\xff" * 12, b"\x08\xff\xff"])
def test_bytes_that_are_no_chunk_are_refused(message):
    with pytest.raises(InvalidMessageError, match="no FetchBlobResponse"):
        decode_chunk(message)


@given(offset=OFFSETS, data=st.binary(max_size=300))
def test_a_chunk_behind_news_is_what_the_protocols_own_parser_reads(offset, data):
    parsed = pb.FollowVersionResponse.FromString(encode_following(encode_chunk(offset, data)))
    assert (parsed.chunk.offset, parsed.chunk.data) == (offset, data)


@given(offset=OFFSETS, data=st.binary(max_size=300))
def test_a_chunk_behind_news_by_the_protocols_own_writer_is_read_back(offset, data):
    message = pb.FollowVersionResponse(chunk=pb.FetchBlobResponse(offset=offset, data=data))
    assert decode_following(message.SerializeToString()) == (offset, data)


def test_a_chunk_behind_news_among_other_fields_is_read():
    assert decode_following(b"\x08\x00" + encode_following(encode_chunk(5, b"abc"))) == (5, b"abc")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\x08\x07", "chunk is missing"),
        (b"", "chunk is missing"),
        (b"\x1a\x05\x12", "no FollowVersionResponse"),
        (b"\x1a\x03\x12\x05a", "no FetchBlobResponse"),
    ],
)
def test_bytes_that_are_no_chunk_behind_news_are_refused(message, problem):
    with pytest.raises(InvalidMessageError, match=problem):
        decode_following(message)


def test_bytes_pass_the_serializer_as_they_are_and_messages_are_coded():
    serialize = message_or_bytes(pb.FetchBlobResponse.SerializeToString)
    assert serialize(b"coded") == b"coded"
    assert serialize(pb.FetchBlobResponse(data=b"x")) == b"\x12\x01x"
