"""No answer leaves before what it says is on the disk."""

import threading

import pytest

from hetero_rl.errors import StorageError
from hetero_rl.hub.syncing import Syncing

pytestmark = pytest.mark.timeout(60)


class Disk:
    """Syncs when the test lets it, and notes in which order things happen."""

    def __init__(self):
        self.log = []
        self.begun = threading.Semaphore(0)
        self.released = threading.Semaphore(0)
        self.error = None

    def sync(self):
        self.begun.release()
        self.released.acquire()
        if self.error is not None:
            raise self.error
        self.log.append("sync")

    def deliver(self, content):
        self.log.append(content)

    def fail(self, content, error):
        self.log.append((content, error))


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def syncing(disk):
    syncing = Syncing(disk.sync, disk.deliver, disk.fail, 2)
    yield syncing
    disk.released.release(100)
    syncing.close()


def hand_over(syncing, content, *, wrote):
    syncing.make_room()
    syncing.hand_over(content, wrote=wrote)


def test_what_wrote_is_answered_after_a_sync(syncing, disk):
    hand_over(syncing, "a", wrote=True)
    disk.begun.acquire()
    assert disk.log == []
    disk.released.release()
    syncing.close()
    assert disk.log == ["sync", "a"]


def test_what_only_read_is_answered_at_once_when_nothing_waits(syncing, disk):
    hand_over(syncing, "read", wrote=False)
    assert disk.log == ["read"]


def test_what_only_read_waits_for_the_commits_that_it_may_have_read(syncing, disk):
    hand_over(syncing, "a", wrote=True)
    disk.begun.acquire()
    hand_over(syncing, "read", wrote=False)
    assert disk.log == []
    disk.released.release()
    syncing.close()
    assert disk.log == ["sync", "a", "read"]


def test_a_commit_during_a_sync_waits_for_the_next_one(syncing, disk):
    hand_over(syncing, "a", wrote=True)
    disk.begun.acquire()
    hand_over(syncing, "b", wrote=True)
    disk.released.release()
    disk.begun.acquire()
    assert disk.log == ["sync", "a"]
    disk.released.release()
    syncing.close()
    assert disk.log == ["sync", "a", "sync", "b"]
    assert syncing.tally.syncs == 2


def test_no_more_commits_than_allowed_wait_for_a_sync(syncing, disk):
    hand_over(syncing, "a", wrote=True)
    disk.begun.acquire()
    hand_over(syncing, "b", wrote=True)
    third = threading.Thread(target=hand_over, args=(syncing, "c"), kwargs={"wrote": True})
    third.start()
    third.join(0.05)
    assert third.is_alive()
    disk.released.release(3)
    third.join()


def test_after_a_failed_sync_nothing_is_acknowledged_any_more(syncing, disk):
    disk.error = StorageError("the disk is gone")
    hand_over(syncing, "a", wrote=True)
    disk.begun.acquire()
    hand_over(syncing, "b", wrote=True)
    disk.released.release()
    syncing.close()
    assert disk.log == [("a", disk.error), ("b", disk.error)]
    assert syncing.tally.syncs == 0
    hand_over(syncing, "read", wrote=False)
    assert "read" not in disk.log
