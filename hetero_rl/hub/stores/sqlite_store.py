"""The embedded store: one SQLite file in WAL mode, synced when told to."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.connection import JournalConnection
from hetero_rl.hub.stores.sqlite_fleet import FleetTables
from hetero_rl.hub.stores.sqlite_groups import GroupTables
from hetero_rl.hub.stores.sqlite_results import ResultTables
from hetero_rl.hub.stores.sqlite_scores import ScoreTables
from hetero_rl.hub.stores.sqlite_steps import StepTables

__all__ = ["SqliteStore"]


class SqliteStore(GroupTables, ResultTables, StepTables, ScoreTables, FleetTables, HubStore):
    """`HubStore` on a file. The tables are in `schema`; each base class holds the statements of some of them."""

    def __init__(self, path: Path) -> None:
        self._journal = JournalConnection(path)

    def begin(self) -> None:
        """See `HubStore`."""
        self._journal.begin()

    def commit(self) -> bool:
        """See `HubStore`."""
        return self._journal.commit()

    def sync(self) -> None:
        """See `HubStore`."""
        self._journal.sync()

    def rollback(self) -> None:
        """See `HubStore`."""
        self._journal.rollback()

    @contextmanager
    def nested(self) -> Generator[None]:
        """See `HubStore`."""
        with self._journal.nested():
            yield

    def writes(self) -> int:
        """See `HubStore`."""
        return self._journal.writes

    def probe_write(self) -> None:
        """See `HubStore`."""
        self._journal.execute(
            "INSERT INTO meta VALUES ('write_probe', '1') ON CONFLICT DO UPDATE SET value = value + 1"
        )

    def verify(self, *, begun: bool = False) -> None:
        """Reads the whole journal before it is used, outside of any transaction.

        What others can stand in for is told by `take_damage`.

        Args:
            begun: Whether a run must be in it, because other traces of one are there.

        Raises:
            DamagedJournalError: Something is damaged that nothing can stand in for.
        """
        self._journal.verify(begun=begun)

    def take_damage(self) -> tuple[str, ...]:
        """See `HubStore`."""
        return self._journal.take_damage()

    def close(self) -> None:
        """See `HubStore`."""
        self._journal.close()
