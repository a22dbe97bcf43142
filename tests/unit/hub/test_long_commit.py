"""Outcomes that come in several messages are kept within the size of their step."""

import pytest

from hetero_rl.errors import InvalidMessageError
from hetero_rl.hub.servicers.long_commit import LongCommit
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.commits import Commit

MOST = 1000


def message(outcomes=(), log_probs=None, *, epoch=1, step=1):
    return Commit(epoch, step, outcomes, log_probs, ColumnEncoding.RAW).request()


@pytest.fixture
def long_commit():
    """A step of two sequences and five tokens."""
    return LongCommit(1, 1, (2, 5), MOST)


def test_outcomes_and_log_probabilities_are_joined_in_their_order(long_commit, messages):
    outcomes = [messages.outcome("g0", index) for index in (0, 1)]
    for part in (
        message(outcomes[:1], float32_column([-1.0, -2.0])),
        message(outcomes[1:]),
        message((), float32_column([-3.0, -4.0, -5.0])),
    ):
        long_commit.add(part)
    assert long_commit.outcomes == outcomes
    assert long_commit.log_probs == float32_column([-1.0, -2.0, -3.0, -4.0, -5.0])


def test_without_log_probabilities_there_is_no_column(long_commit, messages):
    long_commit.add(message([messages.outcome("g0", 0)]))
    assert long_commit.log_probs is None


@pytest.mark.parametrize("other", [{"epoch": 2}, {"step": 2}])
def test_a_message_of_another_step_is_refused(long_commit, other):
    with pytest.raises(InvalidMessageError, match="in a stream of epoch 1 and step 1"):
        long_commit.add(message(**other))


def test_more_outcomes_than_sequences_are_refused_and_not_kept(long_commit, messages):
    long_commit.add(message([messages.outcome("g0", 0)]))
    with pytest.raises(InvalidMessageError, match="more outcomes than the step's 2 sequences"):
        long_commit.add(message([messages.outcome("g1", index) for index in (0, 1)]))
    assert len(long_commit.outcomes) == 1


def test_more_log_probabilities_than_tokens_are_refused_and_not_kept(long_commit):
    long_commit.add(message((), float32_column([-1.0] * 4)))
    with pytest.raises(InvalidMessageError, match="at most 1"):
        long_commit.add(message((), float32_column([-1.0] * 2)))
    assert long_commit.log_probs == float32_column([-1.0] * 4)
