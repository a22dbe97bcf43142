"""Every loop that decodes gives the same bits, for what a sender wrote and for what none did."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the codec extra is not installed")

import numba

from hetero_rl.weights import decoders, lanes, pieces, receiver, wide_receiver
from hetero_rl.weights.delta import DeltaCoder, compare_bits
from hetero_rl.weights.learned import LAYOUTS, Learned
from hetero_rl.wire.messages import DataType

KINDS = {DataType.BFLOAT16: np.uint16, DataType.FLOAT16: np.uint16, DataType.FLOAT32: np.uint32}
DECODERS = {"receiver": receiver.decode, "wide_receiver": wide_receiver.decode}


def decoded(decode, data_type, old, words, count):
    """The bits after a stream of words, and all that was learnt."""
    layout, learned = LAYOUTS[data_type], Learned(LAYOUTS[data_type])
    bits = old.copy()
    decode(bits, words, count, layout.exponent_shift, layout.sign, *learned.arrays())
    return bits, (learned.hazards, learned.far, learned.seen, learned.changed, learned.farther, learned.odds)


def assert_same(data_type, old, words, count=pieces.MOST_LANES):
    expected, learnt = decoded(receiver.decode, data_type, old, words, count)
    bits, learnt_too = decoded(wide_receiver.decode, data_type, old, words, count)
    assert np.array_equal(bits, expected)
    assert all(map(np.array_equal, learnt, learnt_too))
    return expected


def random_words(random, count):
    return np.concatenate(
        (random.integers(0, 2**32, count, np.uint32), np.zeros(pieces.WORDS_AHEAD, np.uint32))
    )


@pytest.mark.parametrize("data_type", KINDS)
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 20_000),
    log_lanes=st.integers(0, 3),
    exponents=st.sampled_from([1, 3, 1000]),
)
def test_any_words_give_the_same_bits(data_type, seed, size, log_lanes, exponents):
    random, kind = np.random.default_rng(seed), KINDS[data_type]
    shift = LAYOUTS[data_type].exponent_shift
    old = random.integers(0, 2 ** (8 * kind().itemsize), size, kind)
    if exponents < 1000:  # few of them, which is what makes some changes likely and others not
        old = ((old % exponents + 60) << shift | old >> (shift + 1)).astype(kind)
    words = random_words(random, 2 << log_lanes | int(random.integers(0, size)))
    assert_same(data_type, old, words, 1 << log_lanes)


def odd_weights(random, size):
    """Stretches in which nothing changes, each value changes, by one or by much, and zeros lose their sign."""
    old = (random.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    new = old.copy()
    for start in range(0, size, size // 16):
        here, rate = slice(start, start + size // 16), 2.0 ** -random.integers(0, 16)
        old[here] = (old[here] & 0x7F) | (random.integers(40, 200) << 7)
        flips = random.random(len(old[here])) < rate
        by = random.choice([1, -1, 2, 300], len(old[here]))
        new[here] = np.where(flips, old[here] + by, old[here]).astype(np.uint16)
    zeros = slice(size // 2, size // 2 + 500)
    old[zeros], new[zeros] = 0, random.choice([0, 0x8000, 1, 0x8001], 500)
    return old, new


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("seed", range(6))
def test_each_loop_decodes_what_a_sender_wrote(name, seed, monkeypatch):
    monkeypatch.setattr(decoders, "fastest", lambda _: DECODERS[name])
    random = np.random.default_rng(seed)
    sender, end = DeltaCoder(), DeltaCoder()
    for size in (1, 300_000, 65_537, 700_001):
        old, new = odd_weights(random, max(size, 2000))
        old, new = old[:size], new[:size]
        payload = sender.encode(DataType.BFLOAT16, old, compare_bits(old, new))
        bits = old.copy()
        end.decode(DataType.BFLOAT16, bits, memoryview(payload))
        assert np.array_equal(bits, new)


@pytest.mark.parametrize("name", DECODERS)
def test_no_memory_beside_the_bits_is_written(name):
    random = np.random.default_rng(5)
    memory = random.integers(0, 2**16, 40_000, np.uint16)
    before, layout = memory.copy(), LAYOUTS[DataType.BFLOAT16]
    arguments = layout.exponent_shift, layout.sign, *Learned(layout).arrays()
    for size in (1, 2, 17, 4097, 30_011):
        bits = memory[5000 : 5000 + size]
        DECODERS[name](bits, random_words(random, 4000), pieces.MOST_LANES, *arguments)
        assert np.array_equal(memory[:5000], before[:5000])
        assert np.array_equal(memory[5000 + size :], before[5000 + size :])
        memory[:] = before


@pytest.mark.parametrize("quiet", [300, 512, 700])
@pytest.mark.parametrize("seed", range(8))
def test_hazards_of_far_elements_that_exceed_the_running_sum_do_not_count(quiet, seed):
    # After the quiet ones, 2048 elements add 3 * 2^32: the running sum is where it was.
    layout, random = LAYOUTS[DataType.BFLOAT16], np.random.default_rng(seed)
    old = np.full(65_536, 0x4080, np.uint16)
    for start in range(0, 65_536, 65_536 // 4):
        old[start : start + quiet] = 0x3F80
    words, results = random_words(random, 40_000), []
    for decode in DECODERS.values():
        learned, bits = Learned(layout), old.copy()
        learned.pieces[0] = 20  # the largest piece at once
        learned.hazards[[0x3F80 >> 7, 0x4080 >> 7]] = 64, 6 << 20
        decode(bits, words, 4, layout.exponent_shift, layout.sign, *learned.arrays())
        results.append(bits)
    assert np.array_equal(*results)
    assert not np.array_equal(results[0], old)


@pytest.mark.parametrize("data_type", KINDS)
def test_a_loop_is_found_for_each_type_and_kept(data_type):
    assert decoders.fastest(data_type) in DECODERS.values()
    assert decoders.fastest(data_type) is decoders.fastest(data_type)


def test_without_vectors_of_entries_only_one_loop_is_tried(monkeypatch):
    monkeypatch.setattr(decoders.llvmlite.binding, "get_host_cpu_features", dict)
    decoders.fastest.cache_clear()
    try:
        assert decoders.fastest(DataType.BFLOAT16) is receiver.decode
    finally:
        decoders.fastest.cache_clear()


@numba.njit
def work(left, right, table, made):
    x, y = lanes.load(left, 0), lanes.load(right, 0)
    lanes.store(made, 0, lanes.times(x, y) - (x >> 1))
    lanes.store(made, 8, lanes.where(x < y, x ^ y, 7))
    lanes.store(made, 16, lanes.gather(table, x & 3) + lanes.numbers())
    lanes.store(made, 24, lanes.highest(lanes.lowest(x, 5), 2 - y))
    return lanes.flags_of(x < y), lanes.count_of(x >= y), lanes.any_of(x == y), lanes.any_of(x != y)


def test_lanes_count_as_integers_do():
    left = np.array([0, 1, 2, 3, 2**31, 2**32 - 1, 9, 8], np.int64)
    right = np.array([0, 5, 1, 3, 2, 2**32 - 1, 10, -1], np.int64)
    table, made = np.array([10, -20, 30, -40], np.int32), np.zeros(32, np.int64)
    flags, count, equal, other = work(left, right, table, made)
    low = (1 << 32) - 1
    products = [(int(x) & low) * (int(y) & low) - (int(x) >> 1) for x, y in zip(left, right, strict=True)]
    assert [number % 2**64 for number in made[:8].tolist()] == [number % 2**64 for number in products]
    assert made[8:16].tolist() == [
        x ^ y if x < y else 7 for x, y in zip(left.tolist(), right.tolist(), strict=True)
    ]
    assert made[16:24].tolist() == [int(table[x & 3]) + lane for lane, x in enumerate(left)]
    assert made[24:].tolist() == [
        max(min(x, 5), 2 - y) for x, y in zip(left.tolist(), right.tolist(), strict=True)
    ]
    assert (flags, count, equal, other) == (0b01000010, 6, True, True)
