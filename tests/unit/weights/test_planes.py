"""Byte planes give back every bit, and a damaged payload is refused within bounded memory."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hetero_rl.errors import DamagedError
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.planes import decode_planes, encode_planes
from hetero_rl.wire.messages import DataType, WeightEncoding

KINDS = {
    DataType.BFLOAT16: np.uint16,
    DataType.FLOAT16: np.uint16,
    DataType.FLOAT32: np.uint32,
    DataType.INT64: np.uint64,
    DataType.UINT8: np.uint8,
}


@pytest.mark.parametrize("data_type", KINDS)
@given(data=st.data())
def test_arbitrary_bits_come_back(data_type, data):
    elements = data.draw(arrays.arrays(KINDS[data_type], st.integers(0, 100)))
    coded = encode_planes(data_type, elements.data)
    assert len(coded) <= elements.nbytes + 1
    assert bytes(decode_planes(data_type, memoryview(coded), elements.nbytes)) == elements.tobytes()


@pytest.mark.parametrize("data_type", [DataType.BFLOAT16, DataType.FLOAT16, DataType.FLOAT32])
def test_every_bit_pattern_of_compressible_elements_comes_back(data_type):
    kind = KINDS[data_type]
    wide = np.arange(2**16, dtype=np.uint64) * (1 if kind is np.uint16 else 65_537)
    elements = np.concatenate([wide.astype(kind), np.zeros(2**18, kind)])
    coded = encode_planes(data_type, elements.data)
    assert coded[:1] == b"\x01"
    assert bytes(decode_planes(data_type, memoryview(coded), elements.nbytes)) == elements.tobytes()


@given(st.data())
def test_a_damaged_payload_is_refused_or_gives_as_many_bytes(data):
    elements = np.full(500, 0x3F80, np.uint16)
    payload = bytearray(encode_planes(DataType.BFLOAT16, elements.data))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(1, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    with contextlib.suppress(DamagedError):
        assert decode_planes(DataType.BFLOAT16, memoryview(payload), 1000).nbytes == 1000


@pytest.mark.parametrize("payload", [b"", b"\x02", b"\x00abc", b"\x01abc", b"\x01" + b"\xff" * 1200])
def test_a_payload_that_no_encoder_makes_is_refused(payload):
    with pytest.raises(DamagedError, match="are no planes of 1000 bytes"):
        decode_planes(DataType.BFLOAT16, memoryview(payload), 1000)


def test_deltas_are_offered_where_numba_is_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert supported_encodings() == (WeightEncoding.FULL_RAW, WeightEncoding.FULL_PLANES)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert WeightEncoding.ULP_DELTA in supported_encodings()
