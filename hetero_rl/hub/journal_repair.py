"""Makes a damaged journal usable again where what is lost can be made again, and says what that was.

    copy of all files ──► log: what is readable of it ──► indexes: made anew ──► leases, workers: damaged ones removed

What cannot be made again (the run, groups, prompts, versions, pages that SQLite cannot follow) is not touched: such a run goes on as
a new one from the weights of its last checkpoint.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hetero_rl.errors import DamagedJournalError, StorageError
from hetero_rl.hub.lock import RunLock
from hetero_rl.hub.stores.connection import SQLITE_ERRORS, JournalConnection, storage_error
from hetero_rl.hub.stores.log_check import LogEvidence, check_log, log_evidence
from hetero_rl.hub.stores.log_index import LogIndex

__all__ = ["repair_journal"]

_REMOVALS = {
    "leases": "DELETE FROM leases WHERE lease_id = ?",
    "workers": "DELETE FROM workers WHERE worker_name = ?",
}
_QUEUE_AGAIN = """
UPDATE groups SET state = 0, row_sum = row_sum(group_id, purpose, ordinal, group_size, min_weight_version, 0, step, attempts,
    admitted_step, oldest_step, stored)
WHERE state = 1 AND group_id NOT IN (SELECT group_id FROM leases)
"""


def repair_journal(directory: Path) -> list[str]:
    """Repairs the journal of a hub that does not run.

    Args:
        directory: RUN/hub.

    Returns:
        What was done; empty when nothing was damaged, and then nothing was changed.

    Raises:
        DamagedJournalError: It cannot be repaired. A copy of what it was is in RUN/hub/damaged.
        StorageError: A hub holds the directory, or there is no journal.
    """
    path = directory / "journal.sqlite"
    if not path.is_file():
        raise StorageError(f"{path} does not exist: name a run directory that has a journal")
    with RunLock(directory):
        kept = _keep_copy(directory)
        done = [*_read_log(path), *_mend_indexes(path), *_mend_rows(path)]
        if not done:
            shutil.rmtree(kept)
        return done


def _keep_copy(directory: Path) -> Path:
    kept = directory / "damaged"
    try:
        kept.mkdir()
        for file in directory.glob("journal.sqlite*"):
            shutil.copy2(file, kept / file.name)
    except FileExistsError:
        raise StorageError(f"{kept} holds the copy of an earlier repair: move it elsewhere first") from None
    except OSError as error:
        raise StorageError(f"{kept} cannot be written: {error.strerror or error}") from error
    return kept


def _read_log(path: Path) -> Iterator[str]:
    """Moves into the main file what is readable of the log."""
    before = log_evidence(path)
    try:
        with LogIndex(path) as index, closing(sqlite3.connect(path, isolation_level=None)) as connection:
            doubt = _doubt(path, index, before)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if doubt:
            yield f"the readable part of the write-ahead log was taken over ({doubt})"
    except SQLITE_ERRORS as error:
        raise storage_error(error, path) from error


def _doubt(path: Path, index: LogIndex, before: LogEvidence) -> str:
    try:
        return check_log(path, index, before)
    except DamagedJournalError as error:
        return str(error)


def _mend_indexes(path: Path) -> Iterator[str]:
    with closing(JournalConnection(path)) as journal:
        found = journal.structural_damage()
        if found:
            journal.execute("REINDEX")
            left = journal.structural_damage()
            if left:
                raise DamagedJournalError(f"{path} cannot be repaired: {'; '.join(left[:5])}")
            yield f"the indexes were made anew ({'; '.join(found[:5])})"


def _mend_rows(path: Path) -> Iterator[str]:
    """Removes damaged rows of workers, which join again, and of leases, whose groups are queued again."""
    with closing(JournalConnection(path)) as journal:
        fatal = [row for row in journal.damaged_rows() if row.fatal]
        hopeless = [row.what for row in fatal if row.table not in _REMOVALS]
        if hopeless:
            raise DamagedJournalError(
                f"{path} cannot be repaired: nothing can stand in for {'; '.join(hopeless[:5])}"
            )
        journal.begin()
        for row in fatal:
            journal.execute(_REMOVALS[row.table], (row.key,))
            yield f"{row.what} was removed"
        if queued := journal.update(_QUEUE_AGAIN, ()):
            yield f"{queued} groups without a lease were queued again"
        journal.commit()
