"""Syncs of the write-ahead log and checkpoints, beside the thread that writes.

    core thread:      COMMIT ─► COMMIT ─► COMMIT ─► ...  writes into the page cache, waits for no disk
    sync's caller:         how far does the log count? ─► fdatasync(log) ─► note it ─► those commits are durable
    checkpoint thread:     2,000 frames that the main file lacks ─► PASSIVE checkpoint on a connection of its own
                           (SQLite syncs the log, copies pages, syncs the main file)

SQLite begins the log again from its first frame only when the main file has everything, and what a checkpoint copied is synced; so a
round that ended is durable. Under steady load the checkpoint thread never has everything: the writer itself copies the rest of a log
that became long (`finish_long_log`).
Shutdown: `close` waits for the checkpoint under way; the writing connection, closed after it, moves what is left.
"""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from hetero_rl.errors import StorageError
from hetero_rl.hub.stores.log_index import NO_LOG, LogIndex, LogMark
from hetero_rl.hub.stores.sync_note import SyncNote

__all__ = ["CHECKPOINT_FRAMES", "LONG_LOG_FRAMES", "LogSync"]

CHECKPOINT_FRAMES = 2000
"""Frames that the main file lacks when the checkpoint thread begins."""
LONG_LOG_FRAMES = 4 * CHECKPOINT_FRAMES
"""Frames of a log of which the writer moves the rest itself."""
_CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"


class LogSync:
    """Makes durable what one connection commits.

    Args:
        journal: Path of the journal; open, with a write-ahead log.
        index: Of this journal.

    Raises:
        StorageError: The log or its note cannot be opened.
    """

    def __init__(self, journal: Path, index: LogIndex) -> None:
        self._journal = journal
        self._index = index
        with ExitStack() as undo:
            try:
                self._log = os.open(journal.with_name(journal.name + "-wal"), os.O_RDONLY)
                undo.callback(os.close, self._log)
                self._note = undo.enter_context(SyncNote(journal))
            except OSError as error:
                raise StorageError(
                    f"the log of {journal} cannot be used: {error.strerror or error}"
                ) from error
            self.connection = sqlite3.connect(journal, isolation_level=None, check_same_thread=False)
            """That of the checkpoints."""
            undo.callback(self.connection.close)
            self.connection.execute("PRAGMA synchronous=NORMAL")
            # A connection that has read nothing knows of no log, and its checkpoints do nothing.
            self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._undo = undo.pop_all()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._checkpoint = self._thread.submit(lambda: None)
        try:
            self.sync()  # what was noted of an earlier log must not be held against this one
        except StorageError:
            self.close()
            raise

    def sync(self) -> None:
        """Returns when everything that was committed before is on the disk. For one thread at a time.

        Raises:
            StorageError: The disk failed: what is on it nobody knows.
        """
        try:
            mark = self._index.mark()  # first: what is committed during the sync belongs to the next one
            os.fdatasync(self._log)
        except OSError as error:
            raise StorageError(
                f"the write-ahead log of {self._journal} cannot be synced: {error.strerror or error}; "
                "look after the disk and start the hub again: what was not acknowledged is handed in again"
            ) from error
        if mark is not NO_LOG:
            with suppress(OSError):  # the disk is full: an old note promises less
                self._note.write(mark.frames, mark.salts)
        self._move_along(mark)

    def move_along(self) -> None:
        """Has a checkpoint made when enough has gathered, without a sync before; does not wait for it."""
        self._move_along(self._index.mark())

    def _move_along(self, mark: LogMark) -> None:
        if mark.frames - mark.moved >= CHECKPOINT_FRAMES and self._checkpoint.done():
            self._checkpoint = self._thread.submit(_move, self.connection)

    def finish_long_log(self, writer: sqlite3.Connection) -> None:
        """Copies the rest of a long log, so that it begins again; for the writing thread, between transactions."""
        mark = self._index.mark()
        if mark.frames >= LONG_LOG_FRAMES and mark.moved < mark.frames and self._checkpoint.done():
            _move(writer)

    def close(self) -> None:
        """Ends the thread; to be called before the writing connection is closed."""
        self._thread.shutdown(wait=True)
        self._undo.close()


def _move(connection: sqlite3.Connection) -> None:
    # Nothing is lost when it fails: the log has everything, and whoever writes next meets the same disk and says so.
    with suppress(sqlite3.Error):
        connection.execute(_CHECKPOINT)
