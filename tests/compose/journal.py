"""Reads the journal of a finished run, and says what is wrong with it."""

import sqlite3
from collections import Counter
from contextlib import closing

from hetero_rl.wire.messages.work import Purpose

__all__ = ["problems"]


def problems(journal, *, steps, samples_per_step, max_lag):
    """Everything that a finished run may not show; empty when nothing acknowledged was lost and nothing was trained twice.

    Args:
        journal: The file; nothing writes to it any more.
        steps: Optimizer steps of the run.
        samples_per_step: Sequences of each.
        max_lag: Bound of every sequence's lag.
    """
    with closing(sqlite3.connect(journal)) as connection:
        return [
            *_lost(connection),
            *_trained(connection, steps, samples_per_step, max_lag),
        ]


def _lost(connection):
    """A sequence is in the journal once its worker has the acknowledgement; each must have changed the weights."""
    stored = connection.execute(
        "SELECT group_id, sample_index FROM sequences JOIN groups USING (group_id) WHERE purpose = ?",
        (Purpose.TRAIN.value,),
    ).fetchall()
    if not stored:
        yield "the journal has no sequence at all"
    trained = {(group, sample) for group, sample, *_ in _outcomes(connection)}
    for group, sample in stored:
        if (group, sample) not in trained:
            yield f"sequence {sample} of group {group} was acknowledged and never trained on"


def _trained(connection, steps, samples_per_step, max_lag):
    outcomes = _outcomes(connection)
    counted = Counter((group, sample) for group, sample, *_ in outcomes)
    yield from (f"{each} changed the weights {count} times" for each, count in counted.items() if count > 1)
    of_steps = Counter(step for _, _, step, _ in outcomes)
    if of_steps != dict.fromkeys(range(1, steps + 1), samples_per_step):
        yield f"sequences by step are {dict(sorted(of_steps.items()))}, expected {samples_per_step} in each of {steps}"
    yield from (f"step {step} has lag {lag}" for _, _, step, lag in outcomes if not 0 <= lag <= max_lag)


def _outcomes(connection):
    """(group, sample, step, lag) of every sequence of the steps that count."""
    return connection.execute(
        "SELECT group_id, sample_index, step, lag FROM outcomes JOIN steps USING (commit_id) WHERE abandoned = 0"
    ).fetchall()
