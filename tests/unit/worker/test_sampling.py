"""Sampling against numbers worked out by hand."""

import math

import pytest
import torch

from hetero_rl.worker.engines.transformers.sampling import draw_tokens, processed_log_probs, sample_noise


def processed(probabilities, *, temperature=1.0, top_p=1.0, top_k=0) -> list[float]:
    log_probs = processed_log_probs(
        torch.tensor([probabilities]).log(),
        torch.tensor([temperature]),
        torch.tensor([top_p]),
        torch.tensor([top_k]),
    )
    return log_probs.exp()[0].tolist()


def test_nothing_set_leaves_the_distribution_alone():
    assert processed([0.5, 0.2, 0.2, 0.1]) == pytest.approx([0.5, 0.2, 0.2, 0.1])


def test_top_k_keeps_the_most_probable_and_renormalises():
    # 0.5 / 0.7 and 0.2 / 0.7 are left.
    assert processed([0.1, 0.5, 0.2, 0.05, 0.15], top_k=2) == pytest.approx([0, 5 / 7, 2 / 7, 0, 0])


def test_tokens_that_tie_with_the_last_kept_one_are_kept():
    assert processed([0.5, 0.2, 0.2, 0.1], top_k=2) == pytest.approx([5 / 9, 2 / 9, 2 / 9, 0])


def test_top_p_keeps_the_smallest_set_with_that_mass():
    # 0.5 alone is below 0.6; with 0.3 it is 0.8.
    assert processed([0.3, 0.5, 0.2], top_p=0.6) == pytest.approx([0.375, 0.625, 0])


def test_top_p_always_keeps_the_most_probable_token():
    assert processed([0.3, 0.5, 0.2], top_p=0.01) == pytest.approx([0, 1, 0])


def test_temperature_divides_the_logits():
    # Squares of 0.8 and 0.2 are 0.64 and 0.04; their sum is 0.68.
    assert processed([0.8, 0.2], temperature=0.5) == pytest.approx([0.64 / 0.68, 0.04 / 0.68])


def test_top_k_comes_before_top_p():
    # Of the two kept by top_k, 0.4 / 0.7 = 0.571 is at least 0.55 alone.
    assert processed([0.4, 0.3, 0.3 - 1e-3, 1e-3], top_k=2, top_p=0.55) == pytest.approx([1, 0, 0, 0])


def test_rows_have_settings_of_their_own():
    logits = torch.tensor([[0.6, 0.3, 0.1]] * 2).log()
    result = processed_log_probs(logits, torch.ones(2), torch.ones(2), torch.tensor([1, 0])).exp()
    assert result.tolist() == [pytest.approx([1, 0, 0]), pytest.approx([0.6, 0.3, 0.1])]


@pytest.mark.parametrize(
    ("noise", "token"), [(0.0, 1), (0.24, 1), (0.26, 3), (0.74, 3), (0.76, 4), (1 - 2.0**-52, 4)]
)
def test_a_token_is_where_the_cumulative_distribution_passes_the_noise(noise, token):
    # Tokens 0, 2 and 5 have no probability at all and are never drawn.
    log_probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log()
    assert draw_tokens(log_probs, torch.tensor([noise], dtype=torch.float64)).tolist() == [token]


def test_noise_is_the_same_for_the_same_seed_and_sample_only():
    noise = sample_noise(7, 3, 5)
    assert torch.equal(noise, sample_noise(7, 3, 5))
    assert not torch.equal(noise, sample_noise(7, 4, 5))
    assert not torch.equal(noise, sample_noise(8, 3, 5))
    assert not torch.equal(sample_noise(None, 3, 5), sample_noise(None, 3, 5))


def test_noise_lies_below_one():
    noise = sample_noise(1, 0, 10_000)
    assert noise.min() >= 0
    assert noise.max() < 1
    assert noise.mean().item() == pytest.approx(0.5, abs=5 / math.sqrt(12 * 10_000))
