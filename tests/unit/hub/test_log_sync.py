"""The log is moved beside the writer, and begins again when it became long."""

import time

import pytest

from hetero_rl.hub.stores import log_sync
from hetero_rl.hub.stores.log_index import mark_of_file
from hetero_rl.hub.stores.sqlite_store import SqliteStore


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sync, "_CHECKPOINT_FRAMES", 20)
    monkeypatch.setattr(log_sync, "_LONG_LOG_FRAMES", 60)
    path = tmp_path / "journal.sqlite"
    store = SqliteStore(path)
    yield store, path.with_name("journal.sqlite-shm")
    store.close()


def write(store, number):
    store.begin()
    store.add_event(0.0, "note", "", f"event {number}" * 1000)
    store.commit()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_sync_has_the_log_moved_by_another_thread(journal):
    store, index = journal
    for number in range(12):
        write(store, number)
    assert mark_of_file(index).moved == 0
    store.sync()
    until(lambda: mark_of_file(index).moved >= 20)


def test_a_log_that_became_long_begins_again(journal):
    store, index = journal
    first = mark_of_file(index).salts
    longest = 0
    for number in range(100):
        write(store, number)
        longest = max(longest, mark_of_file(index).frames)
    assert mark_of_file(index).salts != first
    assert longest < 90
    assert len(store.events(0, 1000)) == 100
