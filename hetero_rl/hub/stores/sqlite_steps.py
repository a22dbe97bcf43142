"""Statements on applied steps, their outcomes and weight versions."""

import dataclasses
from typing import Any

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.codec import decode, encode
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import StepCommit, VersionRow
from hetero_rl.wire.messages import Disposition, SequenceOutcome, WeightManifest

__all__ = ["StepTables"]

_OUTCOME_FIELDS = tuple(field.name for field in dataclasses.fields(SequenceOutcome))
_OUTCOME_COLUMNS = ", ".join(_OUTCOME_FIELDS)
_SELECT_OUTCOMES = f"SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE commit_id = ? ORDER BY position"  # ruff: ignore[hardcoded-sql-expression] names of our own fields
_INSERT_OUTCOME = (
    f"INSERT INTO outcomes (commit_id, position, {_OUTCOME_COLUMNS}) "  # ruff: ignore[hardcoded-sql-expression] the same
    f"VALUES ({', '.join('?' * (len(_OUTCOME_FIELDS) + 2))})"
)
_SELECT_VERSION = "SELECT version, step, state_digest, abandoned, pruned FROM versions"


def _outcome(row: Row) -> SequenceOutcome:
    values: dict[str, Any] = dict(zip(_OUTCOME_FIELDS, row, strict=True))
    values["disposition"] = Disposition(values["disposition"])
    return SequenceOutcome(**values)


def _version_row(row: Row) -> VersionRow:
    return VersionRow(row[0], row[1], row[2], bool(row[3]), bool(row[4]))


class StepTables(HubStore):
    """Tables `steps`, `outcomes`, `versions` and `routes`."""

    _journal: JournalConnection

    def add_commit(self, commit: StepCommit) -> None:
        """See `HubStore`."""
        commit_id = self._journal.execute(
            "INSERT INTO steps VALUES (NULL, ?, ?, ?, ?, ?)",
            (commit.step, commit.trainer_epoch, commit.committed_at, commit.abandoned, commit.log_probs),
        )
        self._journal.execute_many(
            _INSERT_OUTCOME,
            [
                (commit_id, position, *(getattr(outcome, name) for name in _OUTCOME_FIELDS))
                for position, outcome in enumerate(commit.outcomes)
            ],
        )

    def commit_of(self, step: int) -> StepCommit | None:
        """See `HubStore`."""
        row = self._journal.row(
            "SELECT commit_id, step, trainer_epoch, committed_at, log_probs FROM steps "
            "WHERE step = ? AND abandoned = 0",
            (step,),
        )
        if row is None:
            return None
        return StepCommit(
            step=row[1],
            trainer_epoch=row[2],
            committed_at=row[3],
            outcomes=tuple(map(_outcome, self._journal.rows(_SELECT_OUTCOMES, (row[0],)))),
            log_probs=row[4],
        )

    def abandon_after(self, step: int) -> int:
        """See `HubStore`."""
        self._journal.cache.forget("version")
        self._journal.execute("UPDATE versions SET abandoned = 1 WHERE step > ?", (step,))
        return self._journal.update(
            "UPDATE steps SET abandoned = 1 WHERE step > ? AND abandoned = 0", (step,)
        )

    def prune_commit_log_probs(self, step: int) -> None:
        """See `HubStore`."""
        self._journal.execute(
            "UPDATE steps SET log_probs = NULL WHERE step <= ? AND log_probs IS NOT NULL", (step,)
        )

    def add_version(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("version")
        self._journal.execute(
            "INSERT INTO versions VALUES (?, ?, ?, 0, 0, ?)",
            (manifest.version, manifest.step, manifest.state_digest, encode(manifest)),
        )

    def manifest(self, version: int) -> WeightManifest | None:
        """See `HubStore`."""
        row = self._journal.row("SELECT manifest FROM versions WHERE version = ?", (version,))
        return None if row is None else decode(WeightManifest, row[0])

    def version(self, version: int) -> VersionRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("version", version, lambda: self._version(version))

    def _version(self, version: int) -> VersionRow | None:
        row = self._journal.row(f"{_SELECT_VERSION} WHERE version = ?", (version,))
        return None if row is None else _version_row(row)

    def versions(self) -> tuple[VersionRow, ...]:
        """See `HubStore`."""
        return tuple(
            map(_version_row, self._journal.rows(f"{_SELECT_VERSION} WHERE pruned = 0 ORDER BY version"))
        )

    def latest_version(self) -> VersionRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("version", "latest", self._latest_version)

    def _latest_version(self) -> VersionRow | None:
        row = self._journal.row(f"{_SELECT_VERSION} ORDER BY version DESC LIMIT 1")
        return None if row is None else _version_row(row)

    def mark_version_pruned(self, version: int) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("version")
        if not self._journal.update("UPDATE versions SET pruned = 1 WHERE version = ?", (version,)):
            raise ConflictError(f"weight version {version} is not in the journal")

    def add_route(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        self._journal.execute(
            "INSERT INTO routes VALUES (?, ?, 0, ?)",
            (manifest.version, manifest.base_version, encode(manifest)),
        )

    def route(self, version: int, base_version: int) -> WeightManifest | None:
        """See `HubStore`."""
        row = self._journal.row(
            "SELECT manifest FROM routes WHERE version = ? AND base_version = ?", (version, base_version)
        )
        return None if row is None else decode(WeightManifest, row[0])

    def routes(self) -> tuple[WeightManifest, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(
            "SELECT manifest FROM routes WHERE pruned = 0 ORDER BY version, base_version"
        )
        return tuple(decode(WeightManifest, row[0]) for row in rows)

    def mark_route_pruned(self, version: int, base_version: int) -> None:
        """See `HubStore`."""
        if not self._journal.update(
            "UPDATE routes SET pruned = 1 WHERE version = ? AND base_version = ?", (version, base_version)
        ):
            raise ConflictError(f"no way from version {base_version} to {version} is in the journal")
