"""A hub without what keeps results safe, to measure what that costs. For the benchmark only: no setting leads here.

Everything else is the hub's own code: servers, conversions, handlers, statements. What may be left out, each by itself:

- sync: the disk is asked to sync before each acknowledgement;
- checks: completions are held against lease, limits, vocabulary and versions; every submission of a call is undone alone
  when it is refused; what was stored before is recognised, by a look-up and by a unique index; rows carry checksums.

Plaintext or TLS with tokens is a matter of the configuration. Left in are the conversions from the protocol, with the sizes
that they check before taking memory: without them there would be nothing to store.
"""

import asyncio
import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetero_rl.config.tree import Config
from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.hub.handlers import results
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.server import ADDRESS_FILE, hub_settings, running_hub
from hetero_rl.hub.stores import sqlite_groups, sqlite_results
from hetero_rl.hub.stores.records import SubmissionId
from hetero_rl.hub.stores.schema import SCHEMA
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.hub.stores.sums import Sums

__all__ = ["GuardedStore", "Guards", "serve_with"]

_UNIQUE = ",\n    UNIQUE (worker_name, worker_epoch, sequence)"
_SUBMISSIONS = SCHEMA[SCHEMA.index("CREATE TABLE submissions") :].partition(";")[0]
_SUBMISSIONS_WITHOUT_UNIQUE_INDEX = f"DROP TABLE submissions; {_SUBMISSIONS.replace(_UNIQUE, '')};"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What keeps results safe, and is on unless a benchmark takes it away."""

    transport: bool
    """Mutual TLS, and a token for each worker."""
    sync: bool
    checks: bool


def serve_with(guards: Guards, config: Config, directory: Path) -> None:
    """Serves until the process is terminated; `directory` gets the journal and the address.

    Args:
        guards: What is on.
        config: With certificates exactly when the transport is guarded.
        directory: Empty.
    """
    keep_freed_memory()
    asyncio.run(_serve(guards, config, directory))


async def _serve(guards: Guards, config: Config, directory: Path) -> None:
    if not guards.checks:
        setattr(results, "check_submission", _check_nothing)  # ruff: ignore[set-attr-with-constant] a name the handler imports for itself
        for tables in (sqlite_groups, sqlite_results):
            setattr(tables, "row_sum", _sum_nothing)  # ruff: ignore[set-attr-with-constant] likewise
    store = GuardedStore(directory / "journal.sqlite", guards)
    settings = hub_settings(config)
    async with running_hub(store, MemoryBlobStore(), settings, security=config.security) as hub:
        scratch = directory / "address.tmp"
        scratch.write_text(hub.address, encoding="utf-8")
        scratch.replace(directory / ADDRESS_FILE)
        await asyncio.Event().wait()


def _check_nothing(*_arguments: Any, **_settings: Any) -> None:
    """Takes the place of `check_submission`."""


def _sum_nothing(*_values: Any) -> None:
    """Takes the place of `row_sum`: NULL is stored, as in the rows of a journal from before there were sums."""


class GuardedStore(SqliteStore):
    """The hub's store, with as many of its guards as are measured."""

    def __init__(self, path: Path, guards: Guards) -> None:
        super().__init__(path)
        self._guards = guards
        if not guards.sync:
            self._journal.execute("PRAGMA synchronous=OFF")
            self._journal.log.connection.execute("PRAGMA synchronous=OFF")
        if not guards.checks:
            self._journal.sums = Sums(path, all_rows=False)
            for statement in _SUBMISSIONS_WITHOUT_UNIQUE_INDEX.split(";"):
                self._journal.execute(statement)

    def sync(self) -> None:
        """See `HubStore`."""
        if self._guards.sync:
            super().sync()
        else:
            self._journal.log.move_along()

    @contextmanager
    def nested(self) -> Generator[None]:
        """See `HubStore`; without checks nothing is ever refused, so nothing is undone."""
        if not self._guards.checks:
            yield
            return
        with super().nested():
            yield

    def has_submission(self, submission: SubmissionId) -> bool:
        """See `HubStore`."""
        return self._guards.checks and super().has_submission(submission)

    def has_score_submission(self, key: SubmissionId) -> bool:
        """See `HubStore`."""
        return self._guards.checks and super().has_score_submission(key)
