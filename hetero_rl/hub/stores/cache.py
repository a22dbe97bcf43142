"""Rows that nearly every call reads and few calls write, kept beside the journal.

The hub is the only writer of its journal, so a row that was read stays true until a statement of ours changes its table or a
transaction is undone. Whoever writes says which kind of row it was; whatever is undone forgets everything.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["RowCache"]

T = TypeVar("T")

_MOST_ROWS = 4096


class RowCache:
    """Remembers rows by kind and key, None for one that is not there."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Hashable], Any] = {}

    def get(self, kind: str, key: Hashable, read: Callable[[], T]) -> T:
        """The row, from memory or by `read`."""
        place = (kind, key)
        try:
            row: T = self._rows[place]
        except KeyError:
            row = read()
            self.put(kind, key, row)
        return row

    def put(self, kind: str, key: Hashable, row: object) -> None:
        """Remembers a row as a statement has just written it."""
        if len(self._rows) >= _MOST_ROWS:
            self._rows.clear()
        self._rows[kind, key] = row

    def forget(self, *kinds: str) -> None:
        """Forgets all rows of these kinds."""
        for place in [place for place in self._rows if place[0] in kinds]:
            del self._rows[place]

    def clear(self) -> None:
        """Forgets everything."""
        self._rows.clear()
