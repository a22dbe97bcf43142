"""What tools read from a journal while the hub writes it."""

import dataclasses
import sqlite3

import pytest

from hetero_rl.errors import DamagedError, StorageError
from hetero_rl.hub.handlers.retention import commit_checkpoint, prune_some
from hetero_rl.hub.handlers.runs import open_run
from hetero_rl.hub.journal_reader import JournalReader, trained_twice
from hetero_rl.hub.stores.records import StepCommit
from hetero_rl.hub.stores.schema import SCHEMA_VERSION
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.wire.columns import float32_column, float32_view, int32_view


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


@pytest.fixture
def trained(hub):
    """Two steps of two groups of two completions of two tokens."""
    worker = hub.open()
    hub.enqueue(0, 1, 2, 3)
    hub.generate(worker)
    hub.train(1, log_probs=float32_column([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8]))
    hub.train(2)
    return hub


def test_a_live_run_can_be_read(path, trained):
    with JournalReader(path) as reader:
        run = reader.run()
    assert run.request.run_id == "run"
    assert run.committed_step == 2


def test_every_version_is_listed_with_its_manifest(path, trained, messages):
    for version in (2, 3, 4):
        trained.publish(version, step=version - 1)
    trained(commit_checkpoint, 1, 2, 2)
    trained(open_run, messages.run_request(resume_step=2))
    with JournalReader(path) as reader:
        versions = list(reader.versions())
    assert [manifest for _, manifest in versions] == [
        messages.manifest(version, step=version - 1) for version in (1, 2, 3, 4)
    ]
    assert [(row.step, row.abandoned, row.pruned) for row, _ in versions] == [
        (0, False, True),
        (1, False, True),
        (2, False, False),
        (3, True, False),
    ]


def test_samples_are_cut_out_of_their_batches(path, trained):
    with JournalReader(path) as reader:
        samples = list(reader.samples(step=1))
    assert [(sample.group_id, sample.sample_index) for sample in samples] == [
        ("g1", 0),
        ("g1", 1),
        ("g0", 0),
        ("g0", 1),
    ]
    second = samples[3]
    assert list(int32_view(second.token_ids)) == [11, 2]
    assert list(float32_view(second.log_probs)) == [-2.0, -0.5]
    assert list(float32_view(second.trainer_log_probs)) == pytest.approx([-0.3, -0.4])
    assert list(int32_view(second.prompt_token_ids)) == [5, 6, 7]
    assert second.payload == b"answer"
    assert second.backend == "cpu"
    assert second.outcome.reward == 1.0


def test_samples_come_newest_first_and_stop_at_the_limit(path, trained):
    with JournalReader(path) as reader:
        samples = list(reader.samples(limit=3))
    assert [sample.group_id for sample in samples] == ["g3", "g3", "g2"]


def test_pruned_steps_still_have_the_reservoir(path, trained):
    trained.context.settings = dataclasses.replace(trained.settings, retained_sequences=1)
    trained(commit_checkpoint, 1, 2, 2)
    while trained(prune_some):
        pass
    with JournalReader(path) as reader:
        (sample,) = reader.samples()
        assert len(sample.token_ids) == 8
        assert len(reader.outcomes(1)) == 4


def test_no_trajectory_of_a_resumed_run_is_trained_twice(path, trained, messages):
    trained(open_run, messages.run_request(resume_step=1))
    trained.train(2, epoch=2)
    assert trained_twice(path) == []


def test_a_trajectory_that_two_steps_trained_is_named(path, trained, messages):
    commit = StepCommit(
        step=9, trainer_epoch=1, committed_at=0.0, outcomes=(messages.outcome("g0", 1),), log_probs=None
    )
    trained.store.begin()
    trained.store.add_commit(commit)
    trained.store.commit()
    (found,) = trained_twice(path)
    assert (found.group_id, found.sample_index, found.steps) == ("g0", 1, (1, 9))


def test_a_closed_journal_can_be_read(path, trained):
    trained.store.close()
    assert trained_twice(path) == []


def test_a_missing_journal_is_named_and_not_made(path):
    with pytest.raises(StorageError, match="does not exist"):
        JournalReader(path)
    assert not path.exists()


def test_a_newer_schema_is_refused_with_both_versions(path, store):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StorageError, match=f"version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}"):
        JournalReader(path)


def test_a_file_that_is_no_journal_is_refused(path):
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(DamagedError):
        JournalReader(path)


def test_a_journal_of_before_gets_what_was_added_when_a_hub_opens_it(path, store):
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE syncs")
        connection.execute("DROP TABLE routes")
    with JournalReader(path) as reader:
        assert reader.syncs() == ()
        assert list(reader.routes()) == []
    again = SqliteStore(path)
    again.begin()
    assert again.syncs() == ()
    assert again.routes() == ()
    again.rollback()
    again.close()
