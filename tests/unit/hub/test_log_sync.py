"""The log is moved beside the writer, and begins again when it became long."""

import itertools
import time

import pytest

from hetero_rl.hub.stores import log_sync
from hetero_rl.hub.stores.log_index import mark_of_file
from hetero_rl.hub.stores.sqlite_store import SqliteStore


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sync, "CHECKPOINT_FRAMES", 20)
    monkeypatch.setattr(log_sync, "LONG_LOG_FRAMES", 200)
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
    until(lambda: mark_of_file(index).moved == mark_of_file(index).frames)  # that of the tables
    for number in range(12):
        write(store, number)
    written = mark_of_file(index)
    assert written.frames - written.moved >= 20
    store.sync()
    until(lambda: mark_of_file(index).moved == written.frames)


def test_a_log_that_became_long_begins_again_without_a_sync(journal):
    store, index = journal
    first, numbers = mark_of_file(index).salts, itertools.count()
    until(lambda: write(store, next(numbers)) or mark_of_file(index).salts != first)
    assert len(store.events(0, 10_000)) == next(numbers)
