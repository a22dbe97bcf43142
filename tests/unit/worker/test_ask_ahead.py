"""How much a worker holds beyond its engine, by hand."""

import pytest

from hetero_rl.worker.ask_ahead import AskAhead


def measured(capacity, *, questions, generations):
    ahead = AskAhead(capacity)
    for seconds in questions:
        ahead.note_question(seconds)
    for seconds in generations:
        ahead.note_generation(seconds)
    return ahead


@pytest.mark.parametrize(
    ("question", "generation", "held"),
    [
        (
            0.02,
            60.0,
            16,
        ),  # 10 * 128 * 0.02 / 60 = 0.4: the part that is worth a question, and nothing besides
        (0.2, 20.0, 16 + 13),  # 10 * 128 * 0.2 / 20 = 12.8
        (0.02, 0.2, 128),  # 128 + 16 are more than the engine decodes
        (3.0, 0.2, 128),
    ],
)
def test_a_worker_holds_a_part_and_what_ends_while_it_asks(question, generation, held):
    ahead = measured(128, questions=[question], generations=[generation])
    assert ahead.held(part=16) == held


@pytest.mark.parametrize(("questions", "generations"), [([], []), ([0.02], []), ([], [0.2])])
def test_nothing_is_held_before_both_were_measured(questions, generations):
    assert measured(128, questions=questions, generations=generations).held(part=16) == 0


def test_waiting_at_the_hub_and_in_the_engine_does_not_count():
    ahead = measured(100, questions=[2.0, 0.1, 1.5], generations=[20.0, 10.0, 12.0])
    assert ahead.held(part=5) == 5 + 10  # 10 * 100 * 0.1 / 10


def test_what_is_long_ago_is_forgotten():
    ahead = measured(100, questions=[0.1] + [1.0] * 8, generations=[100.0])
    assert ahead.held(part=5) == 5 + 10


def test_nothing_is_held_by_a_worker_that_does_not_ask_ahead():
    ahead = AskAhead(128, enabled=False)
    ahead.note_question(0.2)
    ahead.note_generation(0.2)
    assert ahead.held(part=16) == 0
