"""Rows that nearly every call reads and few calls write, kept beside the journal.

The hub is the only writer of its journal, so a row that was read stays true until a statement of ours changes its table or a
transaction is undone. Whoever writes says which kind of row it was; whatever is undone forgets everything.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["RowCache"]

T = TypeVar("T")

_MOST_ROWS = 4096
"""Of each kind."""


class RowCache:
    """Remembers rows by kind and key, None for one that is not there."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable, read: Callable[[], T]) -> T:
        """The row, from memory or by `read`."""
        try:
            row: T = self._rows[kind][key]
        except KeyError:
            row = read()
            self.put(kind, key, row)
        return row

    def known(self, kind: str, key: Hashable) -> Any:
        """The row if it is remembered; None when it is not, or when there is no such row."""
        return self._rows.get(kind, {}).get(key)

    def put(self, kind: str, key: Hashable, row: object) -> None:
        """Remembers a row as a statement has just written it."""
        rows = self._rows.setdefault(kind, {})
        if len(rows) >= _MOST_ROWS:
            rows.clear()
        rows[key] = row

    def drop(self, kind: str, key: Hashable) -> None:
        """Forgets one row."""
        self._rows.get(kind, {}).pop(key, None)

    def forget(self, kind: str) -> None:
        """Forgets all rows of a kind."""
        self._rows.pop(kind, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._rows.clear()
