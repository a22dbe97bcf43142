"""What can be made again of a damaged journal is made again, and the rest is left alone."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from typer.testing import CliRunner

from hetero_rl.cli.main import app
from hetero_rl.errors import DamagedJournalError, StorageError
from hetero_rl.hub.journal_reader import JournalReader
from hetero_rl.hub.journal_repair import repair_journal
from hetero_rl.hub.lock import RunLock
from hetero_rl.hub.stores.log_check import log_evidence, log_problem
from hetero_rl.hub.stores.records import GroupState
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.hub.stores.sync_note import MOST_UNSYNCED

# SQLite's lock on the index of a journal in use. Whoever gets it for itself empties the index.
_TAKE_INDEX = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    try:
        fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
    except BlockingIOError:
        print("in use")
    else:
        print("left over")
"""


_LOG_HEADER_BYTES = 32
_FRAME_BYTES = 24 + 4096


@pytest.fixture
def run(tmp_path, make_hub):
    """A run directory whose hub has stopped, with a group that is being generated."""
    directory = tmp_path / "run" / "hub"
    directory.mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    store = SqliteStore(directory / "journal.sqlite")
    hub = make_hub(store)
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.generate(worker, free=2)
    hub.lease(worker, free=2)
    store.close()
    return tmp_path / "run"


@pytest.fixture
def change(run):
    def apply(statement, *values):
        with closing(sqlite3.connect(run / "hub" / "journal.sqlite")) as connection, connection:
            assert connection.execute(statement, values).rowcount == 1

    return apply


@pytest.fixture
def opened(run):
    """Opens the journal, which must be sound."""
    stores = []

    def open_sound():
        store = SqliteStore(run / "hub" / "journal.sqlite")
        stores.append(store)
        store.verify(begun=True)
        store.begin()
        return store

    yield open_sound
    for store in stores:
        store.rollback()
        store.close()


def test_a_sound_journal_is_left_alone(run, opened):
    assert repair_journal(run / "hub") == []
    assert not (run / "hub" / "damaged").exists()
    assert opened().group("g1").state is GroupState.LEASED


def test_a_damaged_lease_is_removed_and_its_group_queued(run, change, opened):
    change("UPDATE leases SET worker_epoch = 7")
    assert repair_journal(run / "hub") == [
        "lease 'g1.0' was removed",
        "1 groups without a lease were queued again",
    ]
    store = opened()
    assert store.leases() == ()
    assert store.group("g1").state is GroupState.QUEUED
    assert (run / "hub" / "damaged" / "journal.sqlite").is_file()


def test_a_damaged_worker_is_removed(run, change, opened):
    change("UPDATE workers SET state = 3")
    assert repair_journal(run / "hub") == ["worker 'w1' was removed"]
    assert opened().workers() == ()


def test_an_index_that_contradicts_its_table_is_made_anew(run, opened):
    path = run / "hub" / "journal.sqlite"
    content = path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'groups_by_state'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    start = content.index(b"g1", (root - 1) * size)
    assert start < root * size
    path.write_bytes(content[:start] + b"g7" + content[start + 2 :])
    with pytest.raises(DamagedJournalError):
        opened()
    (line,) = repair_journal(run / "hub")
    assert line.startswith("the indexes were made anew")
    assert opened().group("g1") is not None


def test_what_nothing_stands_in_for_is_not_touched(run, change):
    change("UPDATE groups SET ordinal = 5 WHERE group_id = 'g0'")
    with pytest.raises(DamagedJournalError, match="cannot be repaired: nothing can stand in for group 'g0'"):
        repair_journal(run / "hub")
    with closing(sqlite3.connect(run / "hub" / "journal.sqlite")) as connection:
        assert connection.execute("SELECT ordinal FROM groups WHERE group_id = 'g0'").fetchone() == (5,)


def test_a_copy_of_an_earlier_repair_is_not_overwritten(run, change):
    (run / "hub" / "damaged").mkdir()
    with pytest.raises(StorageError, match="move it elsewhere"):
        repair_journal(run / "hub")


def test_a_journal_in_use_is_not_repaired(run):
    with RunLock(run / "hub"), pytest.raises(StorageError, match="another hub"):
        repair_journal(run / "hub")


def test_a_missing_journal_is_named(tmp_path):
    with pytest.raises(StorageError, match="does not exist"):
        repair_journal(tmp_path)


class TestLog:
    @pytest.fixture
    def leave(self, run, make_hub):
        """Leaves what a hub does that was killed after so many commits more, of which so many were synced."""
        source = run / "hub"

        def commit_and_die(commits, synced):
            store = SqliteStore(source / "journal.sqlite")
            hub = make_hub(store)
            for number in range(commits):
                if number == synced:
                    store.sync()
                hub(lambda context, number=number: context.event("note", f"event {number}"))
            files = {file.name: file.read_bytes() for file in source.glob("journal.sqlite*")}
            store.close()
            for name, content in files.items():
                (source / name).write_bytes(content)
            return source

        return commit_and_die

    @pytest.fixture
    def killed(self, leave):
        """The files of a hub that was killed after it had committed three times more, and synced the first two."""
        return leave(3, 2)

    @pytest.fixture
    def flip(self, killed):
        """Flips a bit of the last frame of a commit, counted from the last one, -1."""
        log, commits = killed / "journal.sqlite-wal", log_evidence(killed / "journal.sqlite").commits

        def in_commit(number):
            content = bytearray(log.read_bytes())
            content[_LOG_HEADER_BYTES + commits[number] * _FRAME_BYTES - 1] ^= 4
            log.write_bytes(content)

        return in_commit

    def test_a_flipped_bit_of_what_was_synced_is_refused_and_the_part_before_it_is_taken_over(
        self, killed, flip, opened
    ):
        flip(-2)
        for _ in range(2):  # a hub that is started again and again must not find it mended
            with pytest.raises(DamagedJournalError, match=r"write-ahead log .* of its frames were synced"):
                opened()
        (line,) = repair_journal(killed)
        assert line.startswith("the readable part of the write-ahead log was taken over")
        notes = [event.message for event in opened().events(0, 100) if event.kind == "note"]
        assert notes == ["event 0"]

    def test_a_lost_commit_that_was_never_synced_is_told(self, flip, opened):
        flip(-1)
        store = opened()
        (told,) = store.take_damage()
        assert told.startswith("the write-ahead log is not whole: commits that end with its frames")
        assert [event.message for event in store.events(0, 100) if event.kind == "note"] == [
            "event 0",
            "event 1",
        ]

    def test_without_a_note_all_that_the_index_counts_was_synced(self, killed, flip, opened):
        (killed / "journal.sqlite-synced").unlink()
        flip(-1)
        with pytest.raises(DamagedJournalError, match=r"write-ahead log .* of its frames counted"):
            opened()

    def test_a_damaged_note_promises_nothing(self, killed):
        assert log_evidence(killed / "journal.sqlite").synced > 0
        note = bytearray((killed / "journal.sqlite-synced").read_bytes())
        note[-6] ^= 1
        (killed / "journal.sqlite-synced").write_bytes(note)
        assert log_evidence(killed / "journal.sqlite").synced == 0

    def test_an_emptied_log_is_told(self, killed, opened):
        (killed / "journal.sqlite-wal").write_bytes(b"")
        with pytest.raises(DamagedJournalError, match="it is empty"):
            opened()

    def test_the_empty_log_of_whoever_read_an_ended_journal_is_no_loss(self, run, leave, opened):
        store = SqliteStore(run / "hub" / "journal.sqlite")
        store.sync()
        store.close()
        with JournalReader(run / "hub" / "journal.sqlite") as reader:
            list(reader.samples(limit=1))
        assert (run / "hub" / "journal.sqlite-wal").read_bytes() == b""
        opened()

    def test_a_note_of_an_earlier_log_is_not_held_against_a_new_one(self, leave):
        directory = leave(0, 0)
        (directory / "journal.sqlite-shm").unlink()
        assert not log_problem(directory / "journal.sqlite")

    def test_more_lost_commits_than_may_wait_for_a_sync_are_damage(self, leave):
        directory = leave(MOST_UNSYNCED + 2, 1)
        log, commits = directory / "journal.sqlite-wal", log_evidence(directory / "journal.sqlite").commits
        content = bytearray(log.read_bytes())
        content[_LOG_HEADER_BYTES + commits[1] * _FRAME_BYTES - 1] ^= 4
        log.write_bytes(content)
        assert f"come {MOST_UNSYNCED + 1} commits that cannot be read" in log_problem(
            directory / "journal.sqlite"
        )

    @pytest.mark.skipif(sys.platform == "win32", reason="locks of another kind")
    def test_the_index_of_an_open_journal_is_nobodys_left_over(self, killed, opened):
        opened()
        index = killed / "journal.sqlite-shm"
        seen = subprocess.run(
            [sys.executable, "-c", _TAKE_INDEX, str(index)], capture_output=True, text=True, check=True
        )
        assert seen.stdout == "in use\n"

    def test_a_log_that_is_gone_is_told(self, killed, opened):
        (killed / "journal.sqlite-wal").unlink()
        with pytest.raises(DamagedJournalError, match="it is gone"):
            opened()

    def test_a_flipped_bit_is_told_to_whoever_checks(self, killed, flip):
        journal, log = killed / "journal.sqlite", killed / "journal.sqlite-wal"
        assert not log_problem(journal)
        flip(-1)
        assert "is not whole" in log_problem(journal)
        flip(-2)
        assert "of its frames were synced" in log_problem(journal)
        content = bytearray(log.read_bytes())
        content[20] ^= 1
        log.write_bytes(content)
        assert "its header is not what was written" in log_problem(journal)


class TestCommands:
    def test_check_and_repair(self, run, change):
        runner = CliRunner()
        sound = runner.invoke(app, ["journal", "check", str(run)])
        assert (sound.exit_code, sound.output.splitlines()[-1]) == (
            0,
            f"{run / 'hub' / 'journal.sqlite'} is sound",
        )
        change("UPDATE leases SET worker_epoch = 7")
        damaged = runner.invoke(app, ["journal", "check", str(run)])
        assert damaged.exit_code == 1
        assert "lease 'g1.0'" in damaged.output
        repaired = runner.invoke(app, ["journal", "repair", str(run)])
        assert (repaired.exit_code, repaired.output.splitlines()[-1]) == (0, "repaired")
        assert runner.invoke(app, ["journal", "check", str(run)]).exit_code == 0


def test_a_log_that_cannot_be_synced_is_named(tmp_path, monkeypatch):
    def fail(_descriptor):
        raise OSError(5, "Input/output error")

    store = SqliteStore(tmp_path / "journal.sqlite")
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageError, match=r"log of .*journal\.sqlite cannot be synced: Input/output error"):
        store.sync()
    store.close()
