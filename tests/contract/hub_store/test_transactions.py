"""What is durable, what is undone."""

import contextlib
import dataclasses
import sqlite3

import pytest

from hetero_rl.errors import DamagedError, DiskFullError, InvalidMessageError, StorageError
from hetero_rl.hub.stores.records import GroupState, LeaseRow, WorkerRow
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.wire.messages import WorkerState


class TestTransactions:
    def test_reads_see_the_open_transaction(self, store, rows):
        store.put_run(rows.run)
        assert store.run() == rows.run

    def test_a_rollback_leaves_what_the_last_commit_left(self, store, rows):
        store.add_group(rows.prompt("g0"))
        assert store.commit()
        store.begin()
        store.add_group(rows.prompt("g1", 1))
        store.rollback()
        store.begin()
        assert store.group("g0") is not None
        assert store.group("g1") is None

    def test_a_failed_nested_part_is_undone_alone(self, store):
        store.count("before")
        with contextlib.suppress(KeyError), store.nested():
            store.count("inside")
            raise KeyError
        with store.nested():
            store.count("after")
        assert store.counters() == {"after": 1, "before": 1}

    def test_leases_and_groups_are_what_they_were_before_an_undone_part(self, store, rows):
        store.add_group(rows.prompt())
        queued = store.group("g0")
        leased = dataclasses.replace(queued, state=GroupState.LEASED, attempts=1)
        lease = LeaseRow(
            lease_id="l",
            group_id="g0",
            worker_name="w1",
            worker_epoch=1,
            attempt=1,
            min_weight_version=1,
            sample_indices=(0, 1),
        )
        with contextlib.suppress(KeyError), store.nested():
            store.add_lease(lease)
            store.put_group(leased)
            assert (store.lease("l"), store.group("g0")) == (lease, leased)
            raise KeyError
        assert (store.lease("l"), store.group("g0")) == (None, queued)
        store.add_lease(lease)
        store.put_group(leased)
        store.commit()
        store.begin()
        store.remove_lease("l")
        assert store.lease("l") is None
        store.rollback()
        store.begin()
        assert (store.lease("l"), store.group("g0")) == (lease, leased)

    def test_an_undone_submission_is_new_again_and_those_before_it_are_not(self, store, rows):
        store.add_group(rows.prompt())
        store.add_group(rows.prompt("g1", 1))
        known = rows.submit(store, number=5)
        undone = dataclasses.replace(known, sequence=9)
        with contextlib.suppress(KeyError), store.nested():
            rows.submit(store, number=9, group_id="g1")
            assert store.has_submission(undone)
            raise KeyError
        assert not store.has_submission(undone)
        assert store.has_submission(known)
        assert not store.has_submission(dataclasses.replace(known, sequence=4))
        rows.submit(store, number=4, group_id="g1")
        assert store.has_submission(dataclasses.replace(known, sequence=4))
        assert store.has_submission(known)

    def test_what_was_read_before_is_forgotten_when_it_is_undone(self, store, rows):
        worker = WorkerRow(request=rows.join, worker_epoch=1, state=WorkerState.ACTIVE)
        store.put_run(rows.run)
        store.put_worker(worker)
        store.commit()
        store.begin()
        changed = dataclasses.replace(rows.run, committed_step=7)
        busy = dataclasses.replace(worker, completions=5)
        name = worker.request.worker_name

        def read():
            return store.run(), store.worker(name)

        with contextlib.suppress(KeyError), store.nested():
            store.put_run(changed)
            store.add_completions(name, 5)
            assert read() == (changed, busy)
            raise KeyError
        assert read() == (rows.run, worker)
        store.put_run(changed)
        store.add_completions(name, 5)
        assert read() == (changed, busy)
        store.rollback()
        store.begin()
        assert read() == (rows.run, worker)

    def test_every_write_shows_in_the_number_of_writes(self, store, rows):
        numbers = [store.writes()]
        store.put_worker(WorkerRow(request=rows.join, worker_epoch=1, state=WorkerState.ACTIVE))
        for write in (
            lambda: store.add_group(rows.prompt()),
            lambda: rows.submit(store),
            lambda: store.add_completions(rows.join.worker_name, 2),
            lambda: store.put_group(dataclasses.replace(store.group("g0"), stored=2)),
            lambda: store.count("a"),
        ):
            write()
            numbers.append(store.writes())
        assert len(set(numbers)) == len(numbers)

    def test_a_submission_whose_number_is_too_large_is_refused_within_its_part(self, store, rows):
        if isinstance(store, SqliteStore):
            store.add_group(rows.prompt())
            rows.submit(store, number=1)
            with pytest.raises(InvalidMessageError), store.nested():
                rows.submit(store, number=2**63, group_id="g1")
            assert len(store.batches("g0")) == 1
            assert store.batches("g1") == ()

    def test_a_commit_without_writes_says_so(self, store):
        store.commit()
        store.begin()
        store.run()
        assert not store.commit()
        store.begin()

    def test_a_rollback_without_a_transaction_is_harmless(self, store):
        store.commit()
        store.rollback()
        store.begin()

    def test_a_write_probe_changes_nothing_that_is_remembered(self, store):
        store.probe_write()
        assert store.run() is None
        assert store.counters() == {}


class TestSqlite:
    """What only a store on disk can promise."""

    def test_committed_data_is_there_after_a_restart(self, sqlite_path, rows):
        store = SqliteStore(sqlite_path)
        store.begin()
        store.put_run(rows.run)
        store.commit()
        store.close()
        again = SqliteStore(sqlite_path)
        assert again.run() == rows.run
        again.close()

    def test_a_full_disk_is_named_and_leaves_committed_data(self, sqlite_path, rows):
        store = SqliteStore(sqlite_path)
        store.begin()
        store.put_run(rows.run)
        store.commit()
        (pages,) = store._journal.row("PRAGMA page_count")
        store._journal.row(f"PRAGMA max_page_count={pages + 2}")
        store.begin()
        with pytest.raises(DiskFullError, match="no space left"):
            store.add_group(dataclasses.replace(rows.prompt(), payload=bytes(2**20)))
        store.rollback()
        store.begin()
        assert store.run() == rows.run
        assert store.group("g0") is None
        store.commit()
        store.close()

    def test_a_newer_schema_is_refused(self, sqlite_path):
        with contextlib.closing(sqlite3.connect(sqlite_path)) as connection:
            connection.execute("PRAGMA user_version=999")
        with pytest.raises(StorageError, match="999"):
            SqliteStore(sqlite_path)

    def test_a_damaged_journal_is_refused(self, sqlite_path):
        sqlite_path.write_bytes(b"not a database, but long enough to look at" * 100)
        with pytest.raises(DamagedError):
            SqliteStore(sqlite_path)

    def test_the_log_is_synced_by_the_hub_and_not_by_sqlite(self, sqlite_path):
        store = SqliteStore(sqlite_path)
        assert store._journal.row("PRAGMA journal_mode") == ("wal",)
        assert store._journal.row("PRAGMA synchronous") == (1,)
        store.close()
