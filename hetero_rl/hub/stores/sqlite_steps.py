"""Statements on applied steps, their outcomes and weight versions."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.codec import decode, encode
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import StepCommit, VersionRow
from hetero_rl.hub.stores.sums import real, row_sum
from hetero_rl.wire.messages import Disposition, SequenceOutcome, WeightManifest

__all__ = ["StepTables"]

_OUTCOME_FIELDS = tuple(field.name for field in dataclasses.fields(SequenceOutcome))
_OUTCOME_COLUMNS = ", ".join(_OUTCOME_FIELDS)
_SELECT_OUTCOMES = f"SELECT {_OUTCOME_COLUMNS} FROM outcomes WHERE commit_id = ? ORDER BY position"  # ruff: ignore[hardcoded-sql-expression] names of our own fields
_INSERT_OUTCOME = (
    f"INSERT INTO outcomes (commit_id, position, {_OUTCOME_COLUMNS}) "  # ruff: ignore[hardcoded-sql-expression] the same
    f"VALUES ({', '.join('?' * (len(_OUTCOME_FIELDS) + 2))})"
)
_INSERT_STEP = """
INSERT INTO steps (step, trainer_epoch, committed_at, abandoned, log_probs, row_sum, outcomes_sum, log_probs_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_STEP = """
SELECT commit_id, outcomes_sum, log_probs, log_probs_sum, step, trainer_epoch, committed_at, abandoned, row_sum
FROM steps WHERE step = ? AND abandoned = 0
"""
_ABANDON_STEPS = """
UPDATE steps SET abandoned = 1, row_sum = row_sum(step, trainer_epoch, committed_at, 1) WHERE step > ? AND abandoned = 0
"""
_PRUNE_LOG_PROBS = (
    "UPDATE steps SET log_probs = NULL, log_probs_sum = NULL WHERE step <= ? AND log_probs IS NOT NULL"
)
_SELECT_VERSION = "SELECT version, step, state_digest, abandoned, pruned, row_sum FROM versions"
_INSERT_VERSION = """
INSERT INTO versions (version, step, state_digest, abandoned, pruned, row_sum, manifest, manifest_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_ABANDON_VERSIONS = """
UPDATE versions SET abandoned = 1, row_sum = row_sum(version, step, state_digest, 1, pruned) WHERE step > ?
"""
_PRUNE_VERSION = """
UPDATE versions SET pruned = 1, row_sum = row_sum(version, step, state_digest, abandoned, 1) WHERE version = ?
"""
_SELECT_ROUTE = "SELECT version, base_version, manifest, row_sum FROM routes"
_PRUNE_ROUTE = "UPDATE routes SET pruned = 1 WHERE version = ? AND base_version = ?"


def _outcome(row: Row) -> SequenceOutcome:
    values: dict[str, Any] = dict(zip(_OUTCOME_FIELDS, row, strict=True))
    values["disposition"] = Disposition(values["disposition"])
    return SequenceOutcome(**values)


def _outcome_values(outcome: SequenceOutcome) -> tuple[object, ...]:
    """An outcome as SQLite returns it: what its column calls REAL is a float."""
    return (
        outcome.group_id,
        outcome.sample_index,
        real(outcome.reward),
        real(outcome.advantage),
        real(outcome.log_importance_ratio),
        real(outcome.coefficient),
        real(outcome.mean_absolute_gap),
        real(outcome.max_absolute_gap),
        outcome.lag,
        int(outcome.disposition),
        None if outcome.staleness_log_ratio is None else real(outcome.staleness_log_ratio),
        None if outcome.chip_log_ratio is None else real(outcome.chip_log_ratio),
    )


def _version_row(row: Row) -> VersionRow:
    return VersionRow(row[0], row[1], row[2], bool(row[3]), bool(row[4]))


class StepTables(HubStore):
    """Tables `steps`, `outcomes`, `versions` and `routes`."""

    _journal: JournalConnection

    def add_commit(self, commit: StepCommit) -> None:
        """See `HubStore`."""
        header = (commit.step, commit.trainer_epoch, real(commit.committed_at), int(commit.abandoned))
        outcomes = [_outcome_values(outcome) for outcome in commit.outcomes]
        log_probs_sum = None if commit.log_probs is None else row_sum((), commit.log_probs)
        commit_id = self._journal.execute(
            _INSERT_STEP, (*header, commit.log_probs, row_sum(header), row_sum(outcomes), log_probs_sum)
        )
        self._journal.execute_many(
            _INSERT_OUTCOME,
            [(commit_id, position, *values) for position, values in enumerate(outcomes)],
        )

    def commit_of(self, step: int) -> StepCommit | None:
        """See `HubStore`."""
        row = self._journal.row(_SELECT_STEP, (step,))
        if row is None:
            return None
        commit_id, outcomes_sum, log_probs, log_probs_sum, *header, header_sum = row
        outcomes = self._journal.rows(_SELECT_OUTCOMES, (commit_id,))
        sums = self._journal.sums
        sums.require(f"the commit of step {step}", header_sum, header)
        if not sums.fits(outcomes_sum, outcomes):
            self._journal.note_damage(f"outcomes of step {step}")
            outcomes, log_probs = [], None
        if log_probs is not None and not sums.fits(log_probs_sum, (), log_probs):
            self._journal.note_damage(f"the trainer's log-probabilities of step {step}")
            log_probs = None
        return StepCommit(
            step=header[0],
            trainer_epoch=header[1],
            committed_at=header[2],
            outcomes=tuple(map(_outcome, outcomes)),
            log_probs=log_probs,
        )

    def abandon_after(self, step: int) -> int:
        """See `HubStore`."""
        self._journal.cache.forget("version")
        self._journal.execute(_ABANDON_VERSIONS, (step,))
        return self._journal.update(_ABANDON_STEPS, (step,))

    def prune_commit_log_probs(self, step: int) -> None:
        """See `HubStore`."""
        self._journal.execute(_PRUNE_LOG_PROBS, (step,))

    def add_version(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("version")
        header = (manifest.version, manifest.step, manifest.state_digest, 0, 0)
        text = encode(manifest)
        self._journal.execute(
            _INSERT_VERSION, (*header, row_sum(header), text, row_sum((manifest.version, text)))
        )

    def manifest(self, version: int) -> WeightManifest | None:
        """See `HubStore`."""
        row = self._journal.row(
            "SELECT version, manifest, manifest_sum FROM versions WHERE version = ?", (version,)
        )
        if row is None:
            return None
        if not self._journal.sums.fits(row[2], row[:2]):
            self._journal.note_damage(f"the manifest of weight version {version}")
            return None
        return decode(WeightManifest, row[1])

    def version(self, version: int) -> VersionRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("version", version, lambda: self._version(version))

    def _version(self, version: int) -> VersionRow | None:
        row = self._journal.row(f"{_SELECT_VERSION} WHERE version = ?", (version,))
        return None if row is None else self._checked_version(row)

    def _checked_version(self, row: Row) -> VersionRow:
        self._journal.sums.require(f"the row of weight version {row[0]}", row[-1], row[:-1])
        return _version_row(row)

    def versions(self) -> tuple[VersionRow, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(f"{_SELECT_VERSION} WHERE pruned = 0 ORDER BY version")
        return tuple(map(self._checked_version, rows))

    def latest_version(self) -> VersionRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("version", "latest", self._latest_version)

    def _latest_version(self) -> VersionRow | None:
        row = self._journal.row(f"{_SELECT_VERSION} ORDER BY version DESC LIMIT 1")
        return None if row is None else self._checked_version(row)

    def mark_version_pruned(self, version: int) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("version")
        if not self._journal.update(_PRUNE_VERSION, (version,)):
            raise ConflictError(f"weight version {version} is not in the journal")

    def add_route(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        values = (manifest.version, manifest.base_version, encode(manifest))
        self._journal.execute(
            "INSERT INTO routes (version, base_version, manifest, pruned, row_sum) VALUES (?, ?, ?, 0, ?)",
            (*values, row_sum(values)),
        )

    def route(self, version: int, base_version: int) -> WeightManifest | None:
        """See `HubStore`."""
        rows = self._journal.rows(
            f"{_SELECT_ROUTE} WHERE version = ? AND base_version = ?", (version, base_version)
        )
        return next(self._whole_routes(rows), None)

    def routes(self) -> tuple[WeightManifest, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(f"{_SELECT_ROUTE} WHERE pruned = 0 ORDER BY version, base_version")
        return tuple(self._whole_routes(rows))

    def _whole_routes(self, rows: Iterable[Row]) -> Iterator[WeightManifest]:
        for *values, found in rows:
            version, base_version, text = values
            if self._journal.sums.fits(found, values):
                yield decode(WeightManifest, text)
            else:
                what = f"the manifest from weight version {base_version} to {version}"
                self._journal.note_damage(what)

    def mark_route_pruned(self, version: int, base_version: int) -> None:
        """See `HubStore`."""
        if not self._journal.update(_PRUNE_ROUTE, (version, base_version)):
            raise ConflictError(f"no way from version {base_version} to {version} is in the journal")
