"""Diagnostics by hand-computed numbers, and that they never give a number that is not one."""

import math

import pytest
import torch

from hetero_rl.estimators import (
    RecordedBatch,
    diagnostics,
    diagnostics_by,
    effective_share,
    make_estimator,
)
from hetero_rl.estimators.stages.pareto import pareto_smooth


def numbers_of(recorded, log_probs, name="vespo", **options):
    estimator = make_estimator(name, options)
    prepared = estimator.prepare(recorded)
    return diagnostics(prepared, estimator.coefficients(prepared, log_probs), log_probs)


@pytest.fixture
def two():
    """Two sequences of two and one tokens: ratios 2, 1 and 1/2; probabilities of mu all 1/4."""
    recorded = RecordedBatch(
        behavior_log_probs=torch.full((3,), math.log(0.25), dtype=torch.float64),
        lengths=torch.tensor([2, 1]),
        group_ids=torch.tensor([0, 0]),
        rewards=torch.tensor([1.0, 0.0], dtype=torch.float64),
    )
    ratios = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    return recorded, recorded.behavior_log_probs + ratios.log()


def test_token_divergences(two):
    numbers = numbers_of(*two)
    assert numbers["kl"] == pytest.approx(0.0)
    assert numbers["k2"] == pytest.approx(math.log(2) ** 2 / 3)
    assert numbers["k3_kl"] == pytest.approx((2 + 1 + 0.5) / 3 - 1)
    assert numbers["chi2_token"] == pytest.approx((4 + 1 + 0.25) / 3 - 1)


def test_probability_differences(two):
    numbers = numbers_of(*two)
    assert numbers["rollout_probs_diff_max"] == pytest.approx(0.25)
    assert numbers["rollout_probs_diff_mean"] == pytest.approx((0.25 + 0 + 0.125) / 3)
    assert "rollout_actor_probs_pearson_corr" not in numbers  # mu has no spread


def test_sequence_weights(two):
    numbers = numbers_of(*two)
    assert (numbers["groups"], numbers["incomplete_groups"]) == (1.0, 0.0)
    assert numbers["rollout_is_mean"] == pytest.approx(1.25)
    assert numbers["rollout_is_max"] == pytest.approx(2.0)
    assert numbers["chi2_seq"] == pytest.approx((4 + 0.25) / 2 - 1)
    assert numbers["ess/raw"] == pytest.approx(2.5**2 / (2 * 4.25))
    phi = [math.exp(3 + 2 * math.log(2) - 6), math.exp(2 - 3 * math.log(2) - 1)]
    assert numbers["ess/used"] == pytest.approx(sum(phi) ** 2 / (2 * (phi[0] ** 2 + phi[1] ** 2)))
    assert numbers["ess/raw/positive"] == numbers["ess/raw/negative"] == pytest.approx(1.0)


def test_perplexities(two):
    numbers = numbers_of(*two)
    assert numbers["rollout_ppl"] == pytest.approx(4.0)
    assert numbers["training_log_ppl"] == pytest.approx((math.log(4) - math.log(2) / 2 + math.log(8)) / 2)
    assert numbers["log_ppl_diff_max"] == pytest.approx(math.log(2) / 2)


def test_masked_shares_by_sign_and_by_length(two):
    recorded, log_probs = two
    numbers = numbers_of(recorded, log_probs, "grpo")
    assert numbers["share/masked/positive"] == pytest.approx(
        0.5
    )  # ratio 2 of A > 0 is clipped, ratio 1 is not
    assert numbers["share/masked/negative"] == pytest.approx(1.0)  # ratio 1/2 of A < 0 is clipped
    assert numbers["share/masked/length_1"] == pytest.approx(1.0)
    assert numbers["share/masked/length_2"] == pytest.approx(0.5)


def test_each_label_has_the_numbers_of_its_own_sequences(two):
    recorded, log_probs = two
    estimator = make_estimator("grpo")
    prepared = estimator.prepare(recorded)
    coefficients = estimator.coefficients(prepared, log_probs)
    found = diagnostics_by(["ascend", "cuda"], prepared, coefficients, log_probs)
    assert found["ascend"]["kl"] == pytest.approx(-math.log(2) / 2)
    assert found["cuda"]["kl"] == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="labels has 1 entries; 2 are required"):
        diagnostics_by(["ascend"], prepared, coefficients, log_probs)


@pytest.mark.parametrize("value", [-torch.inf, torch.inf, torch.nan, 1e4, -1e4])
def test_no_number_is_nan_whatever_the_engine_reports(two, value):
    recorded, log_probs = two
    for positions in ([0], [0, 1], [0, 1, 2]):
        broken = log_probs.clone()
        broken[positions] = value
        numbers = numbers_of(recorded, broken)
        assert all(math.isfinite(number) for number in numbers.values()), numbers


def test_the_two_parts_of_log_w_add_up(make_recorded):
    recorded, log_probs = make_recorded(old_log_probs=make_recorded(seed=0)[0].behavior_log_probs + 0.25)
    numbers = numbers_of(recorded, log_probs)
    assert numbers["log_w/chip"] == pytest.approx(0.25 * float(recorded.lengths.double().mean()))
    assert numbers["log_w/staleness"] + numbers["log_w/chip"] == pytest.approx(numbers["log_w/mean"])


def test_effective_share_of_nothing_is_zero_and_of_equal_weights_is_one():
    assert effective_share(torch.full((5,), -torch.inf)) == 0.0
    assert effective_share(torch.zeros(0)) == 0.0
    assert effective_share(torch.full((5,), -900.0)) == pytest.approx(1.0)


def test_k_hat_has_defined_answers_for_small_samples_ties_and_zero_weights():
    assert math.isnan(pareto_smooth(torch.randn(24)).k_hat)
    equal = pareto_smooth(torch.zeros(100))
    assert equal.k_hat == -math.inf
    assert equal.log_weights.tolist() == [0.0] * 100
    with_zeros = torch.cat([torch.full((30,), -torch.inf), torch.randn(100).double()])
    smoothed = pareto_smooth(with_zeros)
    assert math.isfinite(smoothed.k_hat)
    assert bool((smoothed.log_weights[:30] == -torch.inf).all())
    assert float(smoothed.log_weights.max()) <= float(with_zeros.max())
    assert math.isnan(pareto_smooth(torch.full((100,), -torch.inf)).k_hat)


def test_k_hat_tells_a_heavy_tail_from_a_light_one():
    exponential = -torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log()
    assert pareto_smooth(0.2 * exponential).k_hat == pytest.approx(0.2, abs=0.1)
    assert pareto_smooth(1.5 * exponential).k_hat == pytest.approx(1.5, abs=0.3)
