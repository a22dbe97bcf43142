"""The store in memory: what tests and dry runs use. Nothing survives the process.

A transaction is a copy of the tables: rows are frozen, so copying the dictionaries that hold them is enough.
"""

import itertools
from collections.abc import Generator
from contextlib import contextmanager

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.memory_fleet import MemoryFleet
from hetero_rl.hub.stores.memory_groups import MemoryGroups
from hetero_rl.hub.stores.memory_results import MemoryResults
from hetero_rl.hub.stores.memory_steps import MemorySteps
from hetero_rl.hub.stores.memory_tables import Tables

__all__ = ["MemoryStore"]


class MemoryStore(MemoryGroups, MemoryResults, MemorySteps, MemoryFleet, HubStore):
    """`HubStore` without a disk."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._before: Tables | None = None
        self._writes = itertools.count()

    def begin(self) -> None:
        """See `HubStore`."""
        if self._before is not None:
            raise ConflictError("a transaction is open already")
        self._before = self._tables.copy()

    def commit(self) -> bool:
        """See `HubStore`."""
        wrote = self._tables != self._before
        self._before = None
        return wrote

    def sync(self) -> None:
        """See `HubStore`."""

    def rollback(self) -> None:
        """See `HubStore`."""
        if self._before is not None:
            self._tables, self._before = self._before, None

    @contextmanager
    def nested(self) -> Generator[None]:
        """See `HubStore`."""
        before = self._tables.copy()
        try:
            yield
        except BaseException:
            self._tables = before
            raise

    def writes(self) -> int:
        """See `HubStore`; takes for granted that something was written."""
        return next(self._writes)

    def probe_write(self) -> None:
        """See `HubStore`."""

    def take_damage(self) -> tuple[str, ...]:  # ruff: ignore[no-self-use] nothing flips bits of this store
        """See `HubStore`."""
        return ()

    def close(self) -> None:
        """See `HubStore`."""
