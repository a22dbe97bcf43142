"""What can be made again of a damaged journal is made again, and the rest is left alone."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from typer.testing import CliRunner

from hetero_rl.cli.main import app
from hetero_rl.errors import DamagedJournalError, StorageError
from hetero_rl.hub.journal_repair import repair_journal
from hetero_rl.hub.lock import RunLock
from hetero_rl.hub.stores.log_check import log_problem
from hetero_rl.hub.stores.records import GroupState
from hetero_rl.hub.stores.sqlite_store import SqliteStore

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
    def killed(self, run, make_hub, tmp_path):
        """The files of a hub that was killed after it had committed three times more."""
        source = run / "hub"
        store = SqliteStore(source / "journal.sqlite")
        hub = make_hub(store)
        for number in range(3):
            hub(lambda context, number=number: context.event("note", f"event {number}"))
        files = {file.name: file.read_bytes() for file in source.glob("journal.sqlite*")}
        store.close()
        for name, content in files.items():
            (source / name).write_bytes(content)
        return source

    def test_a_flipped_bit_is_told_and_the_part_before_it_is_taken_over(self, killed, opened):
        log = killed / "journal.sqlite-wal"
        content = bytearray(log.read_bytes())
        content[-5000] ^= 4
        log.write_bytes(content)
        with pytest.raises(DamagedJournalError, match=r"write-ahead log .* of its frames counted"):
            opened()
        log.write_bytes(content)
        (line,) = repair_journal(killed)
        assert line.startswith("the readable part of the write-ahead log was taken over")
        notes = [event.message for event in opened().events(0, 100) if event.kind == "note"]
        assert notes == ["event 0", "event 1"]

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

    def test_a_flipped_bit_is_told_to_whoever_checks(self, killed):
        assert not log_problem(killed / "journal.sqlite")
        log = killed / "journal.sqlite-wal"
        content = bytearray(log.read_bytes())
        content[-1] ^= 1
        log.write_bytes(content)
        assert "of its frames counted" in log_problem(killed / "journal.sqlite")
        content[20] ^= 1
        log.write_bytes(content)
        assert "its header is not what was written" in log_problem(killed / "journal.sqlite")


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
