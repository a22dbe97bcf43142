"""The fast checks say the same as looking at every element, blocks and corner values included."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.validation import columns
from hetero_rl.wire.validation.columns import (
    aligned_positions,
    first_not_below,
    first_not_log_prob,
    first_not_mask,
)

pytestmark = pytest.mark.usefixtures("either_way")


@pytest.fixture(params=["extremes", "lanes"], scope="module")
def either_way(request):
    """With the standard library's loop over samples, and without it as on Python 3.13."""
    if request.param == "extremes" and columns._minmax is None:
        pytest.skip("this Python has no audioop")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "lanes":
            patch.setattr(columns, "_minmax", None)
        yield


bits = st.integers(0, 2**32 - 1) | st.sampled_from(
    [0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFF7FFFFF, 0xFF800000, 0xFEFFFFFF, 0x7F800000, 0xFFC00000]
)


def test_ids_from_zero_up_to_the_bound_pass():
    assert first_not_below(int32_column([0, 4, 9]), 10) is None
    assert first_not_below(b"", 10) is None


@pytest.mark.parametrize("wrong", [10, 11, 2**31 - 1, -1, -(2**31)])
@pytest.mark.parametrize("position", [0, 1023, 1024, 2500])
def test_the_first_id_outside_the_vocabulary_is_found_in_any_block(wrong, position):
    ids = [3] * 3000
    ids[position] = ids[2999] = wrong
    assert first_not_below(int32_column(ids), 10) == position


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 20), max_size=20),
    bound=st.integers(1, 2**31),
)
def test_the_check_of_ids_agrees_with_comparing_each(ids, bound):
    expected = next((i for i, value in enumerate(ids) if not 0 <= value < bound), None)
    assert first_not_below(int32_column(ids), bound) == expected


@pytest.mark.parametrize(
    "bound", [1, 255, 256, 257, 65_535, 65_536, 131_072, 151_936, 2**24 - 1, 2**24, 2**24 + 1]
)
@pytest.mark.parametrize("few", [1, 3, 200])
def test_ids_next_to_the_bound_are_told_apart_among_many_small_ones(bound, few):
    small = [0] * 100 + [bound // 2] * 100
    column = int32_column([*small, *[bound - 1] * few, *small])
    assert first_not_below(column, bound) is None
    for wrong in (bound, bound + 1, bound | 0xFF, 2**24, -1):
        if not 0 <= wrong < bound:
            column = int32_column([*small, *[bound - 1] * few, wrong, *small, wrong])
            assert first_not_below(column, bound) == 200 + few


@settings(max_examples=100, deadline=None)
@given(bound=st.integers(1, 2**24 + 2), distances=st.lists(st.integers(-3, 300), max_size=4))
def test_the_check_of_a_vocabulary_agrees_with_comparing_each(bound, distances):
    ids = [0] * 300
    for place, distance in enumerate(distances):
        ids[70 * place] = bound - distance
    expected = next((i for i, value in enumerate(ids) if not 0 <= value < bound), None)
    assert first_not_below(int32_column(ids), bound) == expected


def test_both_zeros_and_negative_numbers_are_log_probabilities():
    assert first_not_log_prob(float32_column([-0.5, 0.0, -0.0, -1e-38, -3e38])) is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e-45, 0.5])
@pytest.mark.parametrize("others", [-1.0, 0.0])
def test_nan_infinity_and_the_smallest_positive_number_are_no_log_probabilities(wrong, others):
    values = [others] * 2000
    values[1500] = wrong
    assert first_not_log_prob(float32_column(values)) == 1500


@settings(max_examples=200, deadline=None)
@given(st.lists(bits, max_size=12))
def test_the_check_of_log_probabilities_agrees_with_looking_at_each(patterns):
    column = struct.pack(f"<{len(patterns)}I", *patterns)
    values = struct.unpack(f"<{len(patterns)}f", column)
    expected = next((i for i, value in enumerate(values) if not (math.isfinite(value) and value <= 0)), None)
    assert first_not_log_prob(column) == expected


def test_a_mask_holds_zeros_and_ones():
    assert first_not_mask(b"\x00\x01\x01") is None
    assert first_not_mask(b"\x00\x02\x03") == 1


def test_positions_of_a_value_ignore_bytes_that_straddle_two_elements():
    # 0x0200 beside 0x00: the bytes 02 00 00 00 also stand at offset 1.
    assert list(aligned_positions(int32_column([0x0200, 0, 2, 7, 2]), 2)) == [2, 4]
