"""Answers that leave only once what they say is on the disk.

      core thread                                  syncing thread                             event loop
      make_room ── waits while 4 commits do
      transaction, COMMIT (no sync)
      hand_over ─► queue ────────────────────────► take everything that waits
      make_room, transaction, COMMIT ...           one sync for all of it
                                                   answers, in the order of the commits ────► deliver

The core goes on with the next transactions while the disk syncs, and sees what is not synced yet; nobody outside does: the answer to
a call that only read waits for the commits it may have read from. With nothing on its way, such an answer leaves at once.

Who waits for whom: the core for room, and the syncing thread for the disk. When a sync fails, nobody can say what is on the
disk: every answer that waits becomes the error, and so does every later one, since the store has what may be lost; `fail` ends the hub.
Shutdown: `close`, called by the core thread when it has no more to do, answers what waits and ends the thread.
"""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hetero_rl.errors import StorageError

__all__ = ["SyncTally", "Syncing"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class SyncTally:
    """What syncs have cost since the start."""

    syncs: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Answers(Generic[T]):
    """What one transaction has to tell."""

    content: T
    wrote: bool
    """Whether it committed anything that is to be synced."""


class Syncing(Generic[T]):
    """Hands on the answers of committed transactions, in order.

    Args:
        sync: Makes durable what was committed before; called on a thread of its own.
        deliver: Takes contents whose commits are durable, or that wrote nothing; called from that thread or the core's.
        fail: Takes contents, and the error because of which nobody knows whether they are durable; called on that thread.
        most_unsynced: Commits that may wait for a sync.
    """

    def __init__(
        self,
        sync: Callable[[], None],
        deliver: Callable[[T], None],
        fail: Callable[[T, StorageError], None],
        most_unsynced: int,
    ) -> None:
        self._sync = sync
        self._deliver = deliver
        self._fail = fail
        self._room = threading.BoundedSemaphore(most_unsynced)
        self._queue: queue.SimpleQueue[_Answers[T] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._under_way = 0
        """Answers handed over and not yet delivered; under the lock."""
        self._failure: StorageError | None = None
        self.tally = SyncTally()
        """Replaced by the syncing thread after each sync."""
        self._thread = threading.Thread(target=self._work, name="hub-sync", daemon=True)
        self._thread.start()

    def make_room(self) -> None:
        """Waits until one more commit may wait for its sync. `hand_over` must follow."""
        self._room.acquire()

    def hand_over(self, content: T, *, wrote: bool) -> None:
        """Delivers what a transaction has to tell once it and all before it are durable.

        Args:
            content: The answers.
            wrote: Whether anything was committed that is to be synced.
        """
        if not wrote:
            self._room.release()
        with self._lock:
            at_once = not wrote and self._under_way == 0 and self._failure is None
            self._under_way += not at_once
        if at_once:
            self._deliver(content)
        else:
            self._queue.put(_Answers(content, wrote))

    def close(self) -> None:
        """Delivers what waits and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    # --- in the syncing thread --------------------------------------------------------------------------------------

    def _work(self) -> None:
        going = True
        while going:
            waiting, going = self._gather()
            if any(answers.wrote for answers in waiting) and self._failure is None:
                self._failure = self._attempt()
            for answers in waiting:
                self._hand_on(answers)
            with self._lock:
                self._under_way -= len(waiting)

    def _gather(self) -> tuple[Sequence[_Answers[T]], bool]:
        waiting: list[_Answers[T]] = []
        entry = self._queue.get()
        while entry is not None:
            waiting.append(entry)
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return waiting, True
        return waiting, False

    def _attempt(self) -> StorageError | None:
        started = time.perf_counter()
        try:
            self._sync()
        except StorageError as error:
            return error
        self.tally = SyncTally(self.tally.syncs + 1, self.tally.seconds + time.perf_counter() - started)
        return None

    def _hand_on(self, answers: _Answers[T]) -> None:
        if answers.wrote:
            self._room.release()
        if self._failure is None:
            self._deliver(answers.content)
        else:
            self._fail(answers.content, self._failure)
