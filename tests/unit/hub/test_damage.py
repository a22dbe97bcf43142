"""Completions that were damaged on the hub's disk are generated again, and people are told."""

import dataclasses
import sqlite3
from contextlib import closing

import pytest

from hetero_rl.hub.handlers.damage import generate_again
from hetero_rl.hub.handlers.queue import read_finished_group, take_batch, take_batch_ahead, take_evaluation
from hetero_rl.hub.handlers.workers import sweep
from hetero_rl.hub.stores.records import GroupState
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.wire.messages import Purpose


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


@pytest.fixture
def damage(path):
    """Changes values behind the hub's back, as a disk would."""

    def run(statement):
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(statement).rowcount >= 1

    return run


def events(hub, kind):
    return [event.message for event in hub.store.events(0, 100) if event.kind == kind]


def test_a_group_of_a_batch_is_generated_again_and_the_batch_waits_for_it(hub, damage):
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.generate(worker)
    assert hub(take_batch, 1, 1) == ("g0", "g1")
    damage("UPDATE columns SET token_ids = zeroblob(16) WHERE group_id = 'g1'")
    assert hub(read_finished_group, "g0") is not None
    assert hub(read_finished_group, "g1") is None
    assert hub(take_batch, 1, 1) is None
    assert hub(take_batch_ahead, 1, 1, {"g0"}) == (False, ())
    assert hub.generate(worker) == ["g1"]
    assert hub.train(1) == ("g0", "g1")
    whole = hub(read_finished_group, "g1")
    assert whole.batches[0].sample_indices == (0, 1)
    assert hub.store.counters()["groups_generated_again"] == 1
    (message,) = events(hub, "completions_damaged")
    assert message.startswith("2 of 2 completions of group g1")


def test_damage_is_told_by_the_sweep(hub, damage):
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.generate(worker)
    damage("UPDATE submissions SET backend = 'cuda' WHERE group_id = 'g0'")
    hub(read_finished_group, "g0")
    hub(sweep)
    hub(sweep)
    assert hub.store.counters()["journal_rows_damaged"] == 1
    (message,) = events(hub, "journal_damaged")
    assert message.startswith("completions of group g0")


def test_a_group_without_a_batch_is_chosen_for_one_after_it_was_generated_again(hub, damage):
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.generate(worker, free=2)
    assert hub(take_batch_ahead, 1, 1, ()) == (False, ("g0",))
    damage("DELETE FROM columns")
    assert hub(read_finished_group, "g0") is None
    assert hub(take_batch_ahead, 1, 1, ()) == (False, ())
    assert hub.generate(worker) == ["g0", "g1"]
    assert hub.train(1) == ("g0", "g1")


def test_weights_older_than_its_step_allows_do_not_begin_a_group_again(hub):
    worker = hub.open(max_lag=1)
    hub.enqueue(0, 1)
    hub.generate(worker)
    hub(take_batch, 1, 1)
    late = dataclasses.replace(hub.store.group("g0"), step=3)
    hub(lambda context: generate_again(context, late, whole=0))
    # Step 3 is trained when two steps are applied; with a lag of 1, tokens must come from step 1 or later.
    assert hub.store.group("g0").admitted_step == 1
    assert hub.store.group("g0").state is GroupState.QUEUED


def test_an_evaluation_group_is_generated_again(hub, damage):
    worker = hub.open()
    hub.enqueue(0, purpose=Purpose.EVALUATION)
    hub.generate(worker)
    assert hub(take_evaluation, 1, ["e0"]) == ("e0",)
    damage("UPDATE sequences SET length = 1")
    assert hub(read_finished_group, "e0") is None
    assert hub(take_evaluation, 1, ["e0"]) is None
    assert hub.generate(worker) == ["e0"]
    assert hub(take_evaluation, 1, ["e0"]) == ("e0",)
    assert hub(read_finished_group, "e0").batches[0].lengths == (2, 2)
