"""The judge of a history finds each kind of broken promise, and nothing in a clean one."""

import dataclasses

import pytest

from tests.chaos.history import Applied, History, judge

CLEAN = (
    Applied(1, {"g0/0": "a", "g0/1": "b"}, [0, 0]),
    Applied(2, {"g1/0": "c", "g1/1": "d"}, [1, 0]),
)
EVENTS = (
    {"event": "acknowledged", "worker": "w", "samples": {"g0/0": "a", "g0/1": "b"}},
    {"event": "taken", "step": 1, "samples": {"g0/0": "a", "g0/1": "b"}},
    {"event": "killed", "role": "hub"},
    {"event": "acknowledged", "worker": "w", "samples": {"g1/0": "c"}},
)


def problems(events=EVENTS, applied=CLEAN):
    return judge(events, applied, total_steps=2, max_lag=1, samples_per_step=2)


def changed(index, **fields):
    return [
        dataclasses.replace(item, **fields) if number == index else item for number, item in enumerate(CLEAN)
    ]


def test_a_clean_history_has_no_problem():
    assert problems() == []


@pytest.mark.parametrize(
    ("applied", "problem"),
    [
        (CLEAN[:1], "steps are [1], expected 1 to 2"),
        (changed(1, step=3), "steps are [1, 3], expected 1 to 2"),
        (changed(1, samples={"g1/0": "c"}), "step 2 has 1 samples, expected 2"),
        (changed(1, samples={"g1/0": "c", "g0/1": "b"}), "g0/1 changed the weights 2 times"),
        (changed(1, lags=[2, 0]), "step 2 has a sample of lag 2, the bound is 1"),
        (changed(1, lags=[-1, 0]), "step 2 has a sample of lag -1, the bound is 1"),
        (
            changed(0, samples={"g0/0": "x", "g0/1": "b"}),
            "g0/0 was acknowledged to w and other content was trained",
        ),
        (changed(1, samples={"g2/0": "c", "g1/1": "d"}), "g1/0 was acknowledged to w and lost"),
    ],
)
def test_a_broken_promise_is_named(applied, problem):
    assert problem in problems(applied=applied)


def test_a_batch_that_changes_when_it_is_handed_out_again_is_named():
    events = [*EVENTS, {"event": "taken", "step": 2, "samples": {"g9/0": "z", "g1/1": "d"}}]
    assert problems(events=events) == ["step 2 was handed out with other samples before"]


def test_a_submission_that_is_stored_twice_is_named():
    again = {"event": "stored_again", "worker": "w", "epoch": 1, "sequence": 7}
    assert problems(events=[*EVENTS, again]) == [
        "submission 7 of w, epoch 1, was stored already and was taken for new"
    ]


def test_a_history_is_read_as_it_was_written(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.note("killed", role="hub", at=1.5)
    history.note("taken", step=1, samples={}, at=2.5)
    assert history.read() == [
        {"event": "killed", "role": "hub", "at": 1.5},
        {"event": "taken", "step": 1, "samples": {}, "at": 2.5},
    ]


def test_a_line_that_a_killed_process_left_unfinished_is_passed_over(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.note("taken", step=1, samples={}, at=1.5)
    with history.path.open("a") as file:
        file.write('\n{"event": "taken", "step": 2, "sam')
    history.note("killed", role="trainer", at=2.5)
    assert [event["event"] for event in history.read()] == ["taken", "killed"]


def test_more_torn_lines_than_deaths_are_refused(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.path.write_text('{"event"\n{"eve\n')
    with pytest.raises(AssertionError, match="2 lines of"):
        history.read()
