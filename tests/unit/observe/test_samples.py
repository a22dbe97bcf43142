import json

import pytest

from hetero_rl.hub.journal_reader import Sample
from hetero_rl.observe.samples import (
    gap_style,
    printable,
    readable,
    sample_record,
    sample_view,
    token_table,
    worst_first,
)
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import Disposition, FinishReason, Purpose, SequenceOutcome

WORDS = {1: "How", 2: " many?", 3: "4", 4: "2", 5: "\x1b[2J", 6: "<eos>"}


def decode(token_ids) -> str:
    return "".join(WORDS[token_id] for token_id in token_ids)


def outcome(largest_gap: float) -> SequenceOutcome:
    return SequenceOutcome(
        group_id="train-00000007",
        sample_index=3,
        reward=1.0,
        advantage=0.5,
        log_importance_ratio=-0.25,
        coefficient=0.9,
        mean_absolute_gap=0.125,
        max_absolute_gap=largest_gap,
        lag=2,
        disposition=Disposition.TRAINED,
    )


def sample(**changes) -> Sample:
    fields = {
        "purpose": Purpose.TRAIN,
        "ordinal": 7,
        "step": 4,
        "group_id": "train-00000007",
        "sample_index": 3,
        "finish_reason": FinishReason.STOP,
        "oldest_version": 2,
        "newest_version": 3,
        "worker_name": "cpu-0",
        "backend": "cpu",
        "numerics_id": "9f",
        "prompt_token_ids": int32_column([1, 2]),
        "payload": b"",
        "token_ids": int32_column([3, 4, 6]),
        "log_probs": float32_column([-0.5, -0.25, -1.0]),
        "trainer_log_probs": float32_column([-0.5, -0.5, -2.0]),
        "outcome": outcome(1.0),
    }
    return Sample(**(fields | changes))


def test_a_sample_is_read_token_by_token_with_its_gaps():
    item = readable(sample(), decode)

    assert (item.prompt, item.completion, item.tokens) == ("How many?", "42<eos>", ("4", "2", "<eos>"))
    assert item.gaps == (0.0, 0.25, 1.0)


def test_gaps_are_unknown_without_the_trainers_log_probabilities():
    assert readable(sample(trainer_log_probs=None), decode).gaps is None
    assert readable(sample(log_probs=None), decode).gaps is None


def test_the_view_shows_prompt_completion_reward_lag_and_gaps(text_of):
    lines = [
        " ".join(line.split())
        for line in text_of(sample_view(readable(sample(), decode), with_tokens=False)).splitlines()
    ]

    assert lines[:3] == [
        "train-00000007 #3 step 4 cpu-0 (cpu) weights v2..v3 reward 1",
        "prompt How many?",
        "completion 42<eos>",
    ]
    assert "lag 2" in lines[3]
    assert "|gap| mean 1.25e-01 max 1.00e+00" in lines[3]


def test_a_sample_before_its_step_has_no_reward_yet(text_of):
    text = text_of(sample_view(readable(sample(outcome=None, step=0), decode), with_tokens=False))

    assert "step -" in text
    assert "reward" not in text


def test_the_token_table_has_a_line_for_each_token(text_of):
    lines = [line.split() for line in text_of(token_table(readable(sample(), decode))).splitlines()]

    assert lines[2] == ["1", "4", "2", "-0.25000", "-0.50000", "+2.50e-01"]


def test_output_of_a_model_cannot_reach_the_terminal(text_of):
    item = readable(sample(token_ids=int32_column([5, 5, 5])), decode)

    assert "\x1b" not in text_of(sample_view(item, with_tokens=True))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("a\nb", "a⏎b"),
        ("\x1b[0m", "\\x1b[0m"),
        ("a\u202eb", "a\\u202eb"),
        ("\t", "\\t"),
    ],
)
def test_what_is_not_printable_is_escaped(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("gap", "style"),
    [
        (0.0, "green"),
        (-0.019, "green"),
        (0.02, "yellow"),
        (-0.1, "red"),
        (0.5, "bold white on red"),
        (float("nan"), "bold white on red"),
    ],
)
def test_a_token_is_coloured_by_the_size_of_its_gap(gap, style):
    assert gap_style(gap) == style


def test_the_worst_come_first_and_the_unknown_last():
    small, large, unknown = sample(outcome=outcome(0.1)), sample(outcome=outcome(0.7)), sample(outcome=None)

    assert worst_first([unknown, small, large]) == [large, small, unknown]


def test_a_record_is_json_with_words_for_numbers():
    record = json.loads(json.dumps(sample_record(readable(sample(), decode))))

    assert (record["purpose"], record["finish_reason"], record["outcome"]["disposition"]) == (
        "train",
        "stop",
        "trained",
    )
    assert record["trainer_log_probs"] == [-0.5, -0.5, -2.0]
