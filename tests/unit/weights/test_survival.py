"""The integer tables hold what they are named for, and keep every interval of the coder open."""

import math

import numpy as np
import pytest

from hetero_rl.weights.survival import FINE_BITS, HAZARD_LIMIT, HAZARD_TOP, PROBABILITY_BITS, tables

NAT = 2**20


def survival(hazard):
    coarse, fine, _ = tables()
    return (coarse[hazard >> FINE_BITS] * fine[hazard & 4095]) >> PROBABILITY_BITS


@pytest.mark.parametrize("nats", [0.0, 0.5, 1.0, 3.99, 9.5])
def test_survival_is_the_exponential_of_minus_the_hazard(nats):
    assert survival(round(nats * NAT)) / 2**30 == pytest.approx(math.exp(-nats), rel=1e-4)


def test_one_unit_of_hazard_below_the_limit_always_has_a_probability():
    values = survival(np.arange(HAZARD_LIMIT + 1))
    assert values[0] == 2**30
    assert np.diff(values).max() <= -15


def test_survival_is_positive_to_the_top():
    assert survival(HAZARD_TOP) > 0


def test_the_logarithm_table_ends_at_ln_2():
    logarithms = tables()[2]
    assert logarithms[0] == 0
    assert logarithms[512] == round(math.log(1.5) * 2**30)
    assert logarithms[-1] == round(math.log(2) * 2**30)
