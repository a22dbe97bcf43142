"""The delta codec gives back every bit, whatever the bits are, and never trusts a payload."""

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.weights.delta import GROUP_ELEMENTS, DeltaCoder, compare_bits
from hetero_rl.wire.messages import DataType

FLOATS = [DataType.BFLOAT16, DataType.FLOAT16, DataType.FLOAT32]
SIZES = {DataType.BFLOAT16: np.uint16, DataType.FLOAT16: np.uint16, DataType.FLOAT32: np.uint32}
ODD_BFLOAT16 = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x0001, 0x8001, 0x7F7F, 0xFF7F]
"""+0, -0, +inf, -inf, NaN, the last NaN, the smallest denormals, the largest finite numbers."""


def sent(pairs, data_type):
    """What a receiver has after the deltas of several tensors, and the size of each."""
    sender, receiver = DeltaCoder(), DeltaCoder()
    received, sizes = [], []
    for old, new in pairs:
        payload = sender.encode(data_type, old, compare_bits(old, new))
        bits = old.copy()
        receiver.decode(data_type, bits, memoryview(payload))
        received.append(bits)
        sizes.append(len(payload))
    return received, sizes


def assert_sent(old, new, data_type):
    [bits], [size] = sent([(old, new)], data_type)
    assert np.array_equal(bits, new)
    return size


@pytest.mark.parametrize("data_type", FLOATS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_arbitrary_bits_come_back(data_type, data):
    kind = SIZES[data_type]
    shape = data.draw(st.integers(0, 200))
    old = data.draw(arrays.arrays(kind, shape))
    new = data.draw(arrays.arrays(kind, shape))
    assert_sent(old, new, data_type)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 70_000),
    changes=st.lists(st.tuples(st.integers(0, 69_999), st.integers(1, 65_535)), max_size=20),
    fill=st.sampled_from(ODD_BFLOAT16),
)
@example(size=70_000, changes=[(0, 1), (69_999, 1)], fill=0x3C00)
def test_a_few_changes_far_apart_come_back(size, changes, fill):
    old = np.full(size, fill, np.uint16)
    new = old.copy()
    for position, flip in changes:
        new[position % size] ^= flip
    assert_sent(old, new, DataType.BFLOAT16)


def test_every_pair_of_odd_values_comes_back():
    old = np.repeat(np.array(ODD_BFLOAT16, np.uint16), len(ODD_BFLOAT16))
    new = np.tile(np.array(ODD_BFLOAT16, np.uint16), len(ODD_BFLOAT16))
    assert_sent(old, new, DataType.BFLOAT16)


def test_plus_and_minus_zero_are_one_step_apart():
    old, new = np.zeros(4096, np.uint16), np.full(4096, 0x8000, np.uint16)
    assert assert_sent(old, new, DataType.BFLOAT16) < old.nbytes / 10


@pytest.mark.parametrize("data_type", FLOATS)
@pytest.mark.parametrize("size", [0, 1, 2, 8, 1023, 1025])
def test_nothing_changed_takes_no_bytes(data_type, size):
    old = np.arange(size).astype(SIZES[data_type])
    assert assert_sent(old, old.copy(), data_type) == 0


def test_a_single_element_comes_back():
    assert assert_sent(np.array([0x3F80], np.uint16), np.array([0xBF80], np.uint16), DataType.BFLOAT16) <= 3


def test_a_gap_of_a_million_elements_costs_a_few_bytes():
    old = np.full(2**20, 0x3C00, np.uint16)
    new = old.copy()
    new[-1] += 1
    assert assert_sent(old, new, DataType.BFLOAT16) < 120


def test_where_everything_changed_at_random_the_bytes_are_sent_as_they_are():
    random = np.random.default_rng(0)
    old, new = random.integers(0, 2**16, (2, 50_000), np.uint16)
    assert assert_sent(old, new, DataType.BFLOAT16) <= new.nbytes + 1


def test_tensors_after_one_sent_as_it_is_come_back():
    random = np.random.default_rng(1)
    pairs = [tuple(random.integers(0, 2**16, (2, size), np.uint16)) for size in (3, 4000)]
    small = random.integers(0, 2**16, 5000, np.uint16)
    pairs.append((small, small ^ (random.random(5000) < 0.05).astype(np.uint16)))
    received, sizes = sent([*pairs, pairs[-1]], DataType.BFLOAT16)
    for bits, (_, new) in zip(received, [*pairs, pairs[-1]], strict=True):
        assert np.array_equal(bits, new)
    assert sizes[3] < sizes[2] < pairs[2][1].nbytes / 8


def test_other_element_types_are_sent_as_they_are():
    old = np.array([1, 2, 2**40], np.uint64)
    new = np.array([1, 3, 2**40], np.uint64)
    assert assert_sent(old, new, DataType.INT64) == 25


def test_statistics_start_anew_with_each_group_on_both_sides(monkeypatch):
    monkeypatch.setattr("hetero_rl.weights.delta.GROUP_ELEMENTS", 1000)
    assert GROUP_ELEMENTS == 2**26
    old = np.arange(800, dtype=np.uint16)
    new = old ^ np.uint16(1)
    received, sizes = sent([(old, new)] * 4, DataType.BFLOAT16)
    assert all(np.array_equal(bits, new) for bits in received)
    assert sizes[0] == sizes[2] > sizes[1] == sizes[3]


def trained(density, size=300_000):
    """Weights like a trained layer's and an update that changes about that share of them."""
    random = np.random.default_rng(2)
    weights = random.normal(0, 0.02, size).astype(np.float32)
    moved = weights + random.normal(0, 3e-5 * density, size).astype(np.float32)
    return tuple((array.view(np.uint32) >> 16).astype(np.uint16) for array in (weights, moved))


def entropy_given_exponent(old, new):
    """Bits of positions and signed steps given the exponent: the least that a code without more context takes."""
    exponents = (old >> 7) & 255
    total = 0.0
    for exponent in np.unique(exponents):
        chosen = exponents == exponent
        steps = new[chosen].astype(int) - old[chosen]
        counts = np.unique(steps, return_counts=True)[1]
        total -= (counts * np.log2(counts / chosen.sum())).sum()
    return total


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
def test_a_trained_layers_update_takes_about_its_entropy_given_the_exponent(density):
    old, new = trained(density)
    assert 8 * assert_sent(old, new, DataType.BFLOAT16) < 1.1 * entropy_given_exponent(old, new)


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_damaged_payload_never_does_more_than_give_other_bits(data):
    old, new = trained(0.05, 3000)
    payload = bytearray(DeltaCoder().encode(DataType.BFLOAT16, old, compare_bits(old, new)))
    cut = data.draw(st.integers(1, len(payload)))
    damaged = payload[:cut]
    position = data.draw(st.integers(0, cut - 1))
    damaged[position] ^= data.draw(st.integers(0, 255))
    bits = old.copy()
    try:
        DeltaCoder().decode(DataType.BFLOAT16, bits, memoryview(damaged))
    except DamagedError:
        assert np.array_equal(bits, old)


@settings(deadline=None, max_examples=80)
@given(noise=st.binary(min_size=1, max_size=300), data_type=st.sampled_from(FLOATS))
def test_noise_never_crashes_the_decoder(noise, data_type):
    bits = np.arange(2000).astype(SIZES[data_type])
    before = bits.copy()
    try:
        DeltaCoder().decode(data_type, bits, memoryview(noise))
    except DamagedError:
        assert np.array_equal(bits, before)


@pytest.mark.parametrize("payload", [b"\x02abc", b"\x00abc", b"\x01" + bytes(20)])
def test_a_payload_that_no_encoder_makes_is_refused(payload):
    with pytest.raises(DamagedError, match="are no delta of 3 BFLOAT16 elements"):
        DeltaCoder().decode(DataType.BFLOAT16, np.zeros(3, np.uint16), memoryview(payload))


@pytest.fixture
def short_segments(monkeypatch):
    monkeypatch.setattr("hetero_rl.weights.delta.SEGMENT_ELEMENTS", 1000)


def arriving(payload):
    """A payload of which ever more bytes are asked for, and how many were."""
    asked = [0]

    def read(start, size):
        assert 0 <= start <= start + size <= len(payload)
        asked[0] = max(asked[0], start + size)
        return memoryview(payload)[start : start + size]

    return read, asked


@pytest.mark.usefixtures("short_segments")
def test_parts_of_a_tensor_are_decoded_before_the_bytes_of_later_parts_are_asked_for():
    old, new = trained(0.05, 3500)
    new[1000:2000] = old[1000:2000]  # a part in which nothing changes
    payload = DeltaCoder().encode(DataType.BFLOAT16, old, compare_bits(old, new))
    read, asked = arriving(payload)
    bits, places, needed = old.copy(), [], []
    for done in DeltaCoder().decode_arriving(DataType.BFLOAT16, bits, len(payload), read):
        assert np.array_equal(bits, np.concatenate((new[:done], old[done:])))
        places.append(done)
        needed.append(asked[0])
    assert places == [1000, 2000, 3000, 3500]
    assert needed == sorted(needed)
    assert needed[0] < needed[2] < needed[3] == len(payload)


@pytest.mark.parametrize("payload", [b"", b"\x00" + bytes(range(6))])
def test_a_tensor_that_is_not_coded_in_parts_comes_at_once(payload):
    bits = np.zeros(3, np.uint16)
    read, _ = arriving(payload)
    assert list(DeltaCoder().decode_arriving(DataType.BFLOAT16, bits, len(payload), read)) == [3]
    assert bits.tobytes() == (payload[1:] or bytes(6))


@pytest.mark.usefixtures("short_segments")
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_payload_that_arrives_is_refused_or_gives_other_bits_and_is_never_asked_beyond_its_end(
    data,
):
    old, new = trained(0.05, 3500)
    payload = bytearray(DeltaCoder().encode(DataType.BFLOAT16, old, compare_bits(old, new)))
    damaged = payload[: data.draw(st.integers(1, len(payload)))]
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(0, 255))
    read, _ = arriving(bytes(damaged))
    parts = [3500]
    with contextlib.suppress(DamagedError):
        parts = list(DeltaCoder().decode_arriving(DataType.BFLOAT16, old.copy(), len(damaged), read))
    assert parts[-1] == 3500


def test_an_empty_tensor_has_no_coded_changes():
    with pytest.raises(DamagedError, match="are no delta of 0 BFLOAT16 elements"):
        DeltaCoder().decode(DataType.BFLOAT16, np.zeros(0, np.uint16), memoryview(b"\x01"))
