"""Probe cards: differences by hand, and what a broken engine looks like."""

import math

import pytest

from hetero_rl.errors import EngineError
from hetero_rl.weights.probe import (
    UNDEFINED_DIFFERENCE,
    compare_probe,
    make_probe_card,
    probe_passes,
    probe_score_work,
    random_probe_sequences,
)
from hetero_rl.wire.columns import float32_column, int32_view


@pytest.fixture
def card():
    return make_probe_card([[5, 6, 7], [8, 9]], [-1.0, -2.0, -3.0], tolerance=0.5)


def test_differences_are_trainer_minus_worker(card):
    result = compare_probe(card, float32_column([-1.5, -2.0, -2.75]), 4)
    # differences +0.5, 0, -0.25
    assert result.mean_absolute_difference == 0.25
    assert result.max_absolute_difference == 0.5
    assert result.mean_difference == pytest.approx(0.25 / 3)
    assert (result.weight_version, result.tokens) == (4, 3)
    assert probe_passes(card, result)


def test_a_mean_above_the_tolerance_does_not_pass(card):
    assert not probe_passes(card, compare_probe(card, float32_column([-2.0, -3.0, -3.0]), 4))


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_log_probability_that_is_no_number_never_passes(card, value):
    result = compare_probe(card, float32_column([-1.0, value, -3.0]), 4)
    assert result.max_absolute_difference == UNDEFINED_DIFFERENCE
    assert not probe_passes(card, result)


def test_another_number_of_log_probabilities_is_an_engine_error(card):
    with pytest.raises(EngineError, match="2 log-probabilities for a probe card of 3"):
        compare_probe(card, float32_column([-1.0, -2.0]), 4)


def test_the_card_becomes_score_work_as_it_is(card):
    work = probe_score_work(card, 9)
    assert (work.lengths, list(int32_view(work.token_ids)), work.weight_version) == (
        (3, 2),
        [5, 6, 7, 8, 9],
        9,
    )


@pytest.mark.parametrize(("sequences", "log_probs"), [([[1]], []), ([], []), ([[1, 2]], [-1.0, -2.0])])
def test_a_card_needs_two_tokens_a_sequence_and_a_number_for_each_but_the_first(sequences, log_probs):
    with pytest.raises(ValueError, match="at least 2 tokens"):
        make_probe_card(sequences, log_probs, tolerance=0.1)


def test_random_sequences_repeat_and_stay_in_the_vocabulary():
    drawn = random_probe_sequences(3, 8, 10, seed=1)
    assert drawn == random_probe_sequences(3, 8, 10, seed=1)
    assert drawn != random_probe_sequences(3, 8, 10, seed=2)
    assert {len(sequence) for sequence in drawn} == {8}
    assert all(0 <= token < 10 for sequence in drawn for token in sequence)
