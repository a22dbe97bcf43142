"""Columns are little-endian bytes, whatever they are made from."""

import math

import pytest

from hetero_rl.wire.columns import count, float32_column, float32_view, int32_column, int32_view

SHAPES = [list, tuple, iter]


@pytest.mark.parametrize("shape", SHAPES)
def test_integers_become_four_little_endian_bytes_each(shape):
    assert int32_column(shape([1, 256, -1])) == bytes.fromhex("01000000 00010000 ffffffff")


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_become_ieee_singles(shape):
    # -0.5 is sign 1, exponent 126, mantissa 0.
    assert float32_column(shape([0.0, -0.5])) == bytes.fromhex("00000000 000000bf")


@pytest.mark.parametrize("shape", SHAPES)
def test_an_integer_beyond_32_bits_does_not_fit(shape):
    with pytest.raises(OverflowError):
        int32_column(shape([2**31]))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_number_beyond_single_precision_becomes_infinite(shape):
    assert list(float32_view(float32_column(shape([1e300, -1e300])))) == [math.inf, -math.inf]


def test_views_read_in_place():
    assert list(int32_view(int32_column([5, 7]))) == [5, 7]
    assert list(float32_view(float32_column([0.25]))) == [0.25]


def test_a_column_holds_whole_elements():
    assert count(bytes(12), 4) == 3
    with pytest.raises(ValueError, match="13 bytes"):
        count(bytes(13), 4)
