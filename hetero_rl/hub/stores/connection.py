"""One SQLite connection with transactions, savepoints and our own errors.

    call thread ──begin──► BEGIN IMMEDIATE ──nested──► SAVEPOINT ... RELEASE | ROLLBACK TO ──commit──► the log, unsynced
                               put_off ──► rows that wait ──► written before the next other statement, or by commit

Writes that are put off go to SQLite as one statement for the rows of many calls. No statement and no savepoint ever sees the
journal without them: whatever else is executed comes after them.

A commit outlives the death of the process at once, and that of the machine after the next `sync` (`log_sync`).

Readers (`journal_reader`) open the same file read-only and never block the writer.
"""

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hetero_rl.errors import (
    DamagedJournalError,
    DiskFullError,
    HeteroRLError,
    InvalidMessageError,
    StorageError,
)
from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.cache import RowCache
from hetero_rl.hub.stores.journal_check import DamagedRow, damaged_rows, structural_damage
from hetero_rl.hub.stores.log_check import check_log, log_evidence
from hetero_rl.hub.stores.log_index import LogIndex
from hetero_rl.hub.stores.log_sync import LogSync
from hetero_rl.hub.stores.schema import ADDED_COLUMNS, ADDED_TABLES, SCHEMA, SCHEMA_VERSION
from hetero_rl.hub.stores.sums import SUM_FUNCTION, Sums, sum_of_values

__all__ = ["SQLITE_ERRORS", "WITHOUT_SUMS", "JournalConnection", "check_schema_version", "storage_error"]

WITHOUT_SUMS = "rows_without_sums"
"""Key in `meta` of a journal that was begun before there were sums."""

Row = tuple[Any, ...]

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a statement may raise; the second where the text of SQLite's own error quotes a damaged name."""


def storage_error(error: Exception, path: Path) -> HeteroRLError:
    """Our own error for one of `SQLITE_ERRORS`."""
    if isinstance(error, sqlite3.IntegrityError):
        return ConflictError(f"{path}: {error}")
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(f"no space left for {path}; what was stored before is intact: free some space")
    if _is_damage(error):
        return DamagedJournalError(
            f"{path} is damaged or is not a journal ({error}); see docs/operations.md, section Damaged journals"
        )
    return StorageError(f"{path} cannot be used: {error}")


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    # The extended codes of damage, such as SQLITE_CORRUPT_INDEX, have that of damage in their lowest byte.
    damage = code is not None and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
    # Python's own error about a text that is no UTF-8 has no code; every text that we store is.
    return damage or isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error)


def check_schema_version(found: int, path: Path) -> None:
    """Raises StorageError for a journal that this release does not read."""
    if found > SCHEMA_VERSION:
        raise StorageError(
            f"{path} has schema version {found}, but this release of hetero-rl knows versions up to {SCHEMA_VERSION}: "
            "use a release at least as new as the one that wrote it"
        )


class JournalConnection:
    """A writable connection to the journal.

    Args:
        path: File of the journal; made with its tables when it does not exist.

    Raises:
        StorageError: The file cannot be opened, is damaged or has a newer schema.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        before = log_evidence(path)
        with ExitStack() as undo:
            index = undo.enter_context(LogIndex(path))  # goes after the connections
            try:
                doubt = check_log(path, index, before)
                self._connection = _connect(path)
                undo.callback(self._connection.close)
                self._prepare()
                self.log = LogSync(path, index)
            except SQLITE_ERRORS as error:
                raise storage_error(error, path) from error
            undo.callback(self.log.close)
            self._closing = undo.pop_all()
        self._changes_before = 0
        self._waiting: dict[str, list[Row]] = {}
        self.writes = 0
        """Grows with every write, also with those that wait or failed."""
        self.sums = Sums(path, all_rows=self.row("SELECT 1 FROM meta WHERE key = ?", (WITHOUT_SUMS,)) is None)
        self._damaged: set[str] = set()
        self._untold: list[str] = [doubt] if doubt else []
        self._told: list[str] = []
        self.cache = RowCache()
        """Rows read before; forgotten with whatever is undone."""

    def _prepare(self) -> None:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "wal_autocheckpoint=0",
            "cache_size=-32768",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        check_schema_version(version, self._path)
        if version == 0:
            self._connection.executescript(f"BEGIN;{SCHEMA};PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        elif version < SCHEMA_VERSION:
            self._connection.executescript(
                f"BEGIN;{self._sums_to_add()};PRAGMA user_version={SCHEMA_VERSION};COMMIT;"
            )
        self._connection.executescript(f"BEGIN;{ADDED_TABLES};COMMIT;")
        self._connection.create_function(SUM_FUNCTION, -1, sum_of_values, deterministic=True)

    def _sums_to_add(self) -> str:
        """Statements that give a journal of version 1 columns for checksums, NULL for the rows that are there."""
        known = {
            name
            for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        added = [
            f"ALTER TABLE {table} ADD COLUMN {column} INTEGER"
            for table, columns in ADDED_COLUMNS.items()
            if table in known
            for column in columns
        ]
        note = f"INSERT INTO meta VALUES ('{WITHOUT_SUMS}', '1')"  # ruff: ignore[hardcoded-sql-expression] a name of ours
        return ";".join((*added, note))

    def begin(self) -> None:
        """Opens a transaction."""
        self.execute("BEGIN IMMEDIATE")
        self._told.clear()
        self._changes_before = self._connection.total_changes

    def commit(self) -> bool:
        """Commits; durable after the next `sync`. Says whether anything was written."""
        self._write_waiting()
        wrote = self._connection.total_changes != self._changes_before
        self.execute("COMMIT")
        if wrote:
            self.log.finish_long_log(self._connection)
        return wrote

    def sync(self) -> None:
        """Returns when all that was committed before is on the disk; for one thread at a time, of any."""
        self.log.sync()

    def rollback(self) -> None:
        """Undoes the open transaction, if any: SQLite itself ends one on a full disk."""
        self._forget()
        self._untold, self._told = self._told + self._untold, []
        if self._connection.in_transaction:
            self.execute("ROLLBACK")

    @contextmanager
    def nested(self) -> Generator[None]:
        """A savepoint around what happens inside."""
        self.execute("SAVEPOINT nested")
        try:
            yield
            self._write_waiting()
        except BaseException:
            self._forget()
            if self._connection.in_transaction:
                self.execute("ROLLBACK TO nested")
                self.execute("RELEASE nested")
            raise
        self.execute("RELEASE nested")

    def verify(self, *, begun: bool) -> None:
        """Reads the whole journal; see `SqliteStore.verify`."""
        problems = self.structural_damage()
        rows = [] if problems else self.damaged_rows()
        problems += [row.what for row in rows if row.fatal]
        if begun and not problems and self.row("SELECT 1 FROM run") is None:
            problems.append("it is empty or gone, but there are files of its run")
        if problems:
            raise DamagedJournalError(
                f"{self._path} is damaged: {'; '.join(problems[:5])}{' ...' if len(problems) > 5 else ''}; "
                "see docs/operations.md, section Damaged journals"
            )
        for row in rows:
            self.note_damage(row.what)

    def structural_damage(self) -> list[str]:
        """See `journal_check`."""
        try:
            return structural_damage(self._connection)
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error

    def damaged_rows(self) -> list[DamagedRow]:
        """See `journal_check`."""
        try:
            return list(damaged_rows(self._connection, self.sums))
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error

    def note_damage(self, what: str) -> None:
        """Remembers that a damaged row was passed over, once for each thing."""
        if what not in self._damaged:
            self._damaged.add(what)
            self._untold.append(what)

    def take_damage(self) -> tuple[str, ...]:
        """What was noted since the last call; again, when the transaction that told it is undone."""
        untold, self._untold = self._untold, []
        self._told += untold
        return tuple(untold)

    def execute(self, statement: str, values: Iterable[Any] = ()) -> int:
        """Runs a statement; returns the row id that it inserted, or 0."""
        return self._run(statement, values).lastrowid or 0

    def execute_many(self, statement: str, rows: Iterable[Row]) -> None:
        """Runs a statement for each row."""
        self._write_waiting()
        self.writes += 1
        try:
            self._connection.executemany(statement, rows)
        except (*SQLITE_ERRORS, OverflowError) as error:
            raise _problem(error, self._path) from error

    def update(self, statement: str, values: Iterable[Any]) -> int:
        """Runs an update or delete; returns the number of rows it changed."""
        return self._run(statement, values).rowcount

    def _run(self, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
        self._write_waiting()
        self.writes += 1
        try:
            return self._connection.execute(statement, tuple(values))
        except (*SQLITE_ERRORS, OverflowError) as error:
            raise _problem(error, self._path) from error

    def put_off(self, statement: str, *rows: Row) -> None:
        """Runs a statement for each row before the next other one, or before the commit.

        Args:
            statement: Changes exactly one row. Those of different statements that wait together must touch different tables,
                as they are executed statement by statement.
            rows: Values.
        """
        self.writes += 1
        self._waiting.setdefault(statement, []).extend(rows)

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        self.writes += 1  # should it fail, whoever gets the error may not be the one whose row it is
        for statement, rows in waiting.items():
            before = self._connection.total_changes
            try:
                self._connection.executemany(statement, rows)
            except (*SQLITE_ERRORS, OverflowError) as error:
                raise _problem(error, self._path) from error
            if self._connection.total_changes - before != len(rows):
                raise ConflictError(f"{self._path}: rows to be changed are missing: {statement}")

    def _forget(self) -> None:
        """Drops what is known and what waits of a transaction that is undone."""
        self.cache.clear()
        self._waiting.clear()

    def rows(self, statement: str, values: Iterable[Any] = ()) -> list[Row]:
        """All rows of a query."""
        self._write_waiting()
        try:
            return self._connection.execute(statement, tuple(values)).fetchall()
        except (*SQLITE_ERRORS, OverflowError) as error:
            raise _problem(error, self._path) from error

    def row(self, statement: str, values: Iterable[Any] = ()) -> Row | None:
        """First row of a query."""
        rows = self.rows(statement, values)
        return rows[0] if rows else None

    def close(self) -> None:
        """Moves the write-ahead log into the file and closes it."""
        try:
            self._closing.close()
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error


def _connect(path: Path) -> sqlite3.Connection:
    # Opened where the hub starts, used in the thread of its core only.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _problem(error: Exception, path: Path) -> HeteroRLError:
    """What a failed statement means; a number beyond 63 bits came from a caller."""
    if isinstance(error, SQLITE_ERRORS):
        return storage_error(error, path)
    return InvalidMessageError(f"a number is larger than the journal holds (2^63 - 1): {error}")
