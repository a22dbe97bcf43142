"""What a reader of a journal knows of its soundness: asked for a group or a commit, and remembered."""

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from hetero_rl.errors import DamagedJournalError
from hetero_rl.hub.stores.connection import SQLITE_ERRORS, storage_error
from hetero_rl.hub.stores.journal_check import (
    DamagedRow,
    damaged_rows,
    damaged_rows_of_commit,
    damaged_rows_of_group,
    structural_damage,
)
from hetero_rl.hub.stores.sums import Sums

__all__ = ["Soundness"]

_logger = logging.getLogger(__name__)


class Soundness:
    """Holds checksums against the rows of a journal, and says in the log what is damaged.

    Args:
        connection: Open on the journal.
        path: The journal, for messages.
        sums: Of the journal; None where its rows have none.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, sums: Sums | None) -> None:
        self._connection = connection
        self._path = path
        self._sums = sums
        self._structure: list[str] | None = None
        self._groups: dict[str, bool] = {}
        self._commits: dict[int, bool] = {}

    def damage(self) -> tuple[str, ...]:
        """Everything in the journal that is not as it was written; reads all of it."""
        try:
            found = structural_damage(self._connection)
            if self._sums is not None and not found:
                found = [row.what for row in damaged_rows(self._connection, self._sums)]
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error
        return tuple(found)

    def require_structure(self) -> None:
        """Raises DamagedJournalError unless pages, tables and indexes agree: rows can only be judged where they are found."""
        if self._structure is None:
            try:
                self._structure = structural_damage(self._connection)
            except SQLITE_ERRORS as error:
                raise storage_error(error, self._path) from error
        if self._structure:
            raise DamagedJournalError(
                f"{self._path} is damaged: {'; '.join(self._structure[:3])}; "
                "see docs/operations.md, section Damaged journals"
            )

    def of_group(self, group_id: str) -> bool:
        """Whether a group, its prompt and its completions are as they were written."""
        if self._sums is None:
            return True
        if group_id not in self._groups:
            self._groups[group_id] = self._told(damaged_rows_of_group(self._connection, self._sums, group_id))
        return self._groups[group_id]

    def of_commit(self, commit_id: int) -> bool:
        """Whether a commit, its outcomes and the trainer's log-probabilities are as they were written."""
        if self._sums is None:
            return True
        if commit_id not in self._commits:
            self._commits[commit_id] = self._told(
                damaged_rows_of_commit(self._connection, self._sums, commit_id)
            )
        return self._commits[commit_id]

    def _told(self, rows: Iterable[DamagedRow]) -> bool:
        """Whether there are no such rows; names them otherwise."""
        try:
            damaged = [row.what for row in rows]
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error
        for what in damaged:
            _logger.warning("%s is damaged and left out: %s", self._path, what)
        return not damaged
