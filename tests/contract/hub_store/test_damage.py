"""A value that changed in the file is never returned as if it had been stored."""

import dataclasses
import sqlite3
from contextlib import ExitStack, closing

import pytest

from hetero_rl.errors import DamagedJournalError
from hetero_rl.hub.stores.records import GroupState, LeaseRow, RetainedSequence, ScoreRow, WorkerRow
from hetero_rl.hub.stores.schema import ADDED_COLUMNS
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.hub.stores.sums import row_sum, sum_of_values
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import WorkerState

LEASE = LeaseRow(
    lease_id="g0.0",
    group_id="g0",
    worker_name="w1",
    worker_epoch=1,
    attempt=0,
    min_weight_version=1,
    sample_indices=(0, 1),
)
SCORE = ScoreRow(
    score_id="s0", worker_name="w1", weight_version=1, lengths=(2,), token_ids=int32_column([1, 2])
)
RETAINED = RetainedSequence(
    rank=7,
    group_id="g0",
    sample_index=0,
    token_ids=b"tttt",
    log_probs=b"llll",
    action_mask=None,
    trainer_log_probs=None,
)


@pytest.fixture
def journal(sqlite_path, rows):
    """A journal with a row in every table that has sums, as a closed file."""
    store = SqliteStore(sqlite_path)
    store.begin()
    store.put_run(rows.run)
    store.add_group(rows.prompt())
    store.put_group(dataclasses.replace(store.group("g0"), state=GroupState.LEASED, attempts=1))
    store.add_lease(LEASE)
    rows.submit(store)
    store.add_commit(rows.commit(1, outcomes=(rows.outcome(reward=-0.0), rows.outcome(sample_index=1))))
    store.add_version(rows.manifest(1))
    store.add_version(rows.manifest(2, step=1))
    store.add_route(dataclasses.replace(rows.manifest(2, step=1), base_version=1))
    store.put_worker(WorkerRow(request=rows.join, worker_epoch=1, state=WorkerState.ACTIVE))
    store.put_score(SCORE)
    store.retain(RETAINED)
    store.commit()
    store.close()
    return sqlite_path


@pytest.fixture
def change(journal):
    """Changes values behind the store's back, as a disk would."""

    def run(statement):
        with closing(sqlite3.connect(journal)) as connection, connection:
            assert connection.execute(statement).rowcount == 1

    return run


@pytest.fixture
def reopened(journal):
    """Opens the journal; ends what was opened before."""
    with ExitStack() as opened:

        def reopen():
            opened.close()
            store = SqliteStore(journal)
            opened.callback(store.close)
            store.begin()
            opened.callback(store.rollback)
            return store

        yield reopen


READS_THAT_RAISE = [
    ("UPDATE run SET committed_step = 3", lambda store: store.run()),
    (
        "UPDATE run SET request = replace(request, '\"max_lag\":1', '\"max_lag\":3')",
        lambda store: store.run(),
    ),
    ("UPDATE groups SET step = 1", lambda store: store.group("g0")),
    ("UPDATE groups SET admitted_step = 1", lambda store: store.groups_of_step(0)),
    ("UPDATE groups SET state = 0", lambda store: store.queued_groups(1, 8)),
    ("UPDATE prompts SET payload = x'00'", lambda store: store.prompt_group("g0")),
    ("UPDATE prompts SET prompt_token_ids = x'01000000'", lambda store: store.sampling("g0")),
    ("UPDATE leases SET worker_epoch = 2", lambda store: store.lease("g0.0")),
    ("UPDATE leases SET group_id = 'g1'", lambda store: store.leases()),
    ("UPDATE versions SET step = 2 WHERE version = 1", lambda store: store.version(1)),
    ("UPDATE versions SET abandoned = 1 WHERE version = 2", lambda store: store.latest_version()),
    ("UPDATE versions SET state_digest = 't' WHERE version = 2", lambda store: store.versions()),
    ("UPDATE steps SET trainer_epoch = 2", lambda store: store.commit_of(1)),
    ("UPDATE workers SET state = 3", lambda store: store.worker("w1")),
    ("UPDATE workers SET must_pass_probe = 1", lambda store: store.workers()),
    ("UPDATE groups SET row_sum = NULL", lambda store: store.group("g0")),
    ("UPDATE leases SET sample_indices = CAST(x'ff' AS TEXT)", lambda store: store.lease("g0.0")),
]


@pytest.mark.parametrize(("statement", "read"), READS_THAT_RAISE, ids=[item[0] for item in READS_THAT_RAISE])
def test_a_row_that_nothing_stands_in_for_ends_the_reading(change, reopened, statement, read):
    change(statement)
    store = reopened()
    with pytest.raises(DamagedJournalError, match="is damaged"):
        read(store)


COMPLETIONS = [
    "UPDATE columns SET token_ids = x'0a0000000200000002000000'",
    "UPDATE columns SET log_probs = NULL",
    "UPDATE columns SET action_mask = x'010101'",
    "UPDATE columns SET group_id = 'g0', submission_id = 2",
    "UPDATE columns SET version_spans = zeroblob(96)",
    "UPDATE columns SET row_sum = row_sum + 1",
    "UPDATE submissions SET backend = 'cuda'",
    "UPDATE submissions SET numerics_id = 'm'",
    "UPDATE submissions SET sequence = 9",
    "UPDATE sequences SET length = 1 WHERE sample_index = 0",
    "UPDATE sequences SET oldest_step = 3 WHERE sample_index = 0",
    "UPDATE sequences SET submission_id = 2 WHERE sample_index = 1",
    "DELETE FROM sequences WHERE sample_index = 1",
]


@pytest.mark.parametrize("statement", COMPLETIONS)
def test_damaged_completions_are_passed_over_and_named_once(change, reopened, statement):
    change(statement)
    store = reopened()
    assert store.batches("g0") == ()
    assert store.batches("g0") == ()
    told = store.take_damage()
    assert told in {("completions of group g0",), ()}
    # A row of columns that belongs to no submission is found by what lacks in its group.
    assert told or "submission_id = 2" in statement
    assert store.take_damage() == ()


@pytest.mark.parametrize("statement", [item for item in COMPLETIONS if "columns" not in item])
def test_damaged_scalars_of_completions_are_passed_over(change, reopened, statement):
    change(statement)
    store = reopened()
    assert store.sequences("g0") == ()
    assert store.take_damage()


def test_a_damaged_manifest_is_as_if_it_were_not_there(change, reopened, rows):
    change("UPDATE versions SET manifest = replace(manifest, 'ffff', 'fffe') WHERE version = 2")
    store = reopened()
    assert store.manifest(2) is None
    assert store.manifest(1) == rows.manifest(1)
    assert store.version(2).step == 1
    assert store.take_damage() == ("the manifest of weight version 2",)


def test_a_damaged_way_is_as_if_it_were_not_there(change, reopened):
    change("UPDATE routes SET manifest = replace(manifest, 'ffff', 'fffe')")
    store = reopened()
    assert store.routes() == ()
    assert store.route(2, 1) is None
    assert store.take_damage() == ("the manifest from weight version 1 to 2",)


def test_a_damaged_score_is_as_if_it_were_not_there(change, reopened):
    change("UPDATE scores SET row = replace(row, '\"attempts\":0', '\"attempts\":1')")
    store = reopened()
    assert store.score("s0") is None
    assert store.queued_scores("w1") == ()
    assert store.take_damage() == ("score s0",)


def test_damaged_outcomes_are_not_returned_with_their_step(change, reopened):
    change("UPDATE outcomes SET reward = 2 WHERE position = 1")
    store = reopened()
    commit = store.commit_of(1)
    assert (commit.outcomes, commit.log_probs) == ((), None)
    assert store.take_damage() == ("outcomes of step 1",)


def test_damaged_log_probs_of_the_trainer_are_not_returned_with_their_step(change, reopened):
    change("UPDATE steps SET log_probs = x'00000000'")
    store = reopened()
    commit = store.commit_of(1)
    assert len(commit.outcomes) == 2
    assert commit.log_probs is None
    assert store.take_damage() == ("the trainer's log-probabilities of step 1",)


def test_rows_that_are_changed_get_new_sums(reopened, rows):
    store = reopened()
    store.prune_group("g0")
    store.trim_retained(0)
    store.mark_version_pruned(1)
    store.mark_route_pruned(2, 1)
    store.abandon_after(0)
    store.prune_commit_log_probs(1)
    assert store.prompt_group("g0").payload == b""
    assert store.version(1).pruned
    assert store.version(2).abandoned
    assert store.manifest(2) == rows.manifest(2, step=1)
    assert store.route(2, 1).base_version == 1
    assert store.take_damage() == ()


def test_rows_that_are_older_than_the_sums_are_read_unchecked(journal, change, reopened, rows):
    with closing(sqlite3.connect(journal)) as connection, connection:
        for table, columns in ADDED_COLUMNS.items():
            for column in reversed(columns):
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute("PRAGMA user_version=1")
    store = reopened()
    assert store.run() == rows.run
    assert store.lease("g0.0") == LEASE
    assert store.batches("g0")[0].batch == rows.trajectories()
    assert store.manifest(1) == rows.manifest(1)
    store.put_group(dataclasses.replace(store.group("g0"), state=GroupState.QUEUED))
    store.commit()
    change("UPDATE groups SET ordinal = 5")
    store = reopened()
    with pytest.raises(DamagedJournalError, match="group 'g0'"):
        store.group("g0")


def test_a_sum_is_that_of_values_and_blobs():
    # CRC-32 of "((1, 'a'), [2, None])" followed by the bytes of the blob.
    assert row_sum((1, "a"), b"xy", None) == 0xED53D117
    assert sum_of_values(1, "a", b"xy") == row_sum((1, "a"), b"xy")
    assert row_sum((1, "a"), b"x", b"y") != row_sum((1, "a"), b"xy")
