"""A step's outcomes as one message and as several."""

import dataclasses

import pytest

from hetero_rl.wire import commits
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.commits import Commit
from hetero_rl.wire.convert import fields
from hetero_rl.wire.convert.trajectories import outcomes_from_proto
from hetero_rl.wire.messages import DataType, Disposition, SequenceOutcome

OUTCOME = SequenceOutcome(
    group_id="g", sample_index=0, reward=1.0, advantage=0.5, log_importance_ratio=-0.25, coefficient=1.0,
    mean_absolute_gap=0.0, max_absolute_gap=0.0, lag=1, disposition=Disposition.TRAINED,
)  # fmt: skip


def commit(sequences, log_probs):
    outcomes = [
        dataclasses.replace(OUTCOME, group_id=f"g{number}", sample_index=number % 8)
        for number in range(sequences)
    ]
    return Commit(3, 7, outcomes, log_probs, ColumnEncoding.RAW)


def joined(parts):
    outcomes, log_probs = [], []
    for part in (message.part for message in parts):
        assert (part.trainer_epoch, part.step) == (3, 7)
        outcomes += outcomes_from_proto(part.outcomes) if part.outcomes.group_ids else ()
        column = fields.optional_column_of(part, "log_probs", DataType.FLOAT32)
        log_probs += [] if column is None else [column]
    return outcomes, b"".join(log_probs) if log_probs else None


@pytest.mark.parametrize("log_probs", [None, float32_column([-float(n) for n in range(10)])])
@pytest.mark.parametrize("sequences", [0, 1, 3, 7])
def test_the_parts_of_a_commit_are_the_commit(monkeypatch, sequences, log_probs):
    monkeypatch.setattr(commits, "_OUTCOMES_TOGETHER", 3)
    monkeypatch.setattr(commits, "CHUNK_BYTES", 16)
    whole = commit(sequences, log_probs)
    assert joined(whole.parts()) == (whole.outcomes, log_probs)


def test_no_part_of_a_step_of_three_million_tokens_is_much_larger_than_a_chunk():
    sizes = [part.ByteSize() for part in commit(20_000, bytes(12_000_000)).parts()]
    assert sum(sizes) > 12_000_000
    assert max(sizes) < 1.1 * commits.CHUNK_BYTES


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 0), (100, 0), (100, 10_000)])
def test_the_size_is_hardly_less_than_that_of_the_message(sequences, tokens):
    whole = commit(sequences, bytes(4 * tokens))
    assert 0.5 * whole.size - 200 < whole.request().ByteSize() < 1.1 * whole.size + 200
