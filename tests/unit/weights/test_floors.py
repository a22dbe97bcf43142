"""The entropies that a delta is compared with, by hand."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.weights.delta import compare_bits
from hetero_rl.weights.floors import FloorTally
from hetero_rl.wire.messages import DataType

# Exponent 0x7F: one of four changes, by +1. Exponent 0x80: two of two, by +1 and +2. Each sixteen times, as every sixteenth is sampled.
OLD = np.repeat(np.array([0x3F80, 0x3F80, 0x3F81, 0x3F90, 0x4000, 0x4000], np.uint16), 16)
NEW = np.repeat(np.array([0x3F81, 0x3F80, 0x3F81, 0x3F90, 0x4001, 0x4002], np.uint16), 16)


def tally_of(*pairs, data_type=DataType.BFLOAT16):
    tally = FloorTally()
    for old, new in pairs:
        tally.add(data_type, old, compare_bits(old, new))
    return tally


def test_given_nothing_positions_and_steps_have_one_entropy_each():
    # 6 H2(1/2) = 6 bits; three steps of which one is +2: 3 H(1/3) = 2.755 bits.
    assert 8 / 16 * tally_of((OLD, NEW)).bytes_given_nothing() == pytest.approx(8.755, abs=1e-3)


def test_given_the_exponent_each_has_its_own():
    # 4 H2(1/4) = 3.245 bits and no more for a step that is always +1; none for positions where all change, 2 bits for steps.
    assert 8 / 16 * tally_of((OLD, NEW)).bytes_given_exponents() == pytest.approx(5.245, abs=1e-3)


def test_tensors_of_a_version_share_their_statistics():
    together = tally_of((OLD[:32], NEW[:32]), (OLD[32:], NEW[32:]))
    assert together.bytes_given_exponents() == pytest.approx(tally_of((OLD, NEW)).bytes_given_exponents())


def test_a_far_step_takes_the_bits_below_its_octave():
    old = np.full(16, 0x3F80, np.uint16)
    tally = tally_of((old, old + 100))  # everything changes by the same octave, 64 to 127: six bits each
    assert 8 * tally.bytes_given_exponents() == pytest.approx(16 * 6)
    assert 8 * tally.bytes_given_nothing() == pytest.approx(16 * 6)


@pytest.mark.parametrize("data_type", [DataType.INT64, DataType.FLOAT64])
def test_tensors_that_are_sent_whole_do_not_count(data_type):
    old = np.zeros(4, np.uint64)
    tally = tally_of((old, old + 1), data_type=data_type)
    assert (tally.bytes_given_nothing(), tally.bytes_given_exponents()) == (0, 0)


def test_nothing_changed_takes_nothing():
    assert tally_of((OLD, OLD)).bytes_given_exponents() == 0
    assert tally_of().bytes_given_nothing() == 0
