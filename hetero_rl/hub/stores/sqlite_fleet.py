"""Statements on workers, probe cards, events and counters."""

import dataclasses
import json
from collections.abc import Mapping

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.codec import decode, encode
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import ProbeRow, SyncRow, WorkerRow
from hetero_rl.hub.stores.sums import real, row_sum
from hetero_rl.wire.columns import Float32Bytes
from hetero_rl.wire.messages import Event, JoinRequest, ProbeResult, WeightSync, WorkerState

__all__ = ["SELECT_SYNCS", "FleetTables", "sync_row"]

_SELECT_WORKER = (
    "SELECT completions, row_sum, worker_name, worker_epoch, request, state, state_reason, last_probe, must_pass_probe, "
    "draining, former_boot_ids FROM workers"
)
_PUT_WORKER = """
INSERT OR REPLACE INTO workers (worker_name, worker_epoch, request, state, state_reason, last_probe, must_pass_probe, draining,
    former_boot_ids, completions, row_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD_COMPLETIONS = "UPDATE workers SET completions = completions + ? WHERE worker_name = ?"
_SELECT_PROBES = """
SELECT worker_name, worker_epoch, numerics_id, accepted, occurred_at, weight_version, mean_absolute_difference,
    max_absolute_difference, mean_difference, tokens, log_probs, row_sum
FROM probes WHERE worker_name = ? ORDER BY probe_id
"""
_INSERT_PROBE = """
INSERT INTO probes (worker_name, worker_epoch, numerics_id, accepted, occurred_at, weight_version, mean_absolute_difference,
    max_absolute_difference, mean_difference, tokens, log_probs, row_sum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT_SYNCS = (
    "SELECT row_sum, worker_name, worker_epoch, weight_version, occurred_at, sync FROM syncs ORDER BY sync_id"
)


def _worker_row(row: Row) -> WorkerRow:
    return WorkerRow(
        completions=row[0],
        worker_epoch=row[3],
        request=decode(JoinRequest, row[4]),
        state=WorkerState(row[5]),
        state_reason=row[6],
        last_probe=None if row[7] is None else decode(ProbeResult, row[7]),
        must_pass_probe=bool(row[8]),
        draining=bool(row[9]),
        former_boot_ids=tuple(json.loads(row[10])),
    )


def _probe_row(row: Row) -> ProbeRow:
    result = ProbeResult(
        weight_version=row[5],
        mean_absolute_difference=row[6],
        max_absolute_difference=row[7],
        mean_difference=row[8],
        tokens=row[9],
        log_probs=None if row[10] is None else Float32Bytes(row[10]),
    )
    return ProbeRow(
        worker_name=row[0],
        worker_epoch=row[1],
        numerics_id=row[2],
        result=result,
        accepted=bool(row[3]),
        occurred_at=row[4],
    )


def sync_row(row: Row) -> SyncRow:
    """One row of `SELECT_SYNCS`."""
    return SyncRow(
        worker_name=row[1], worker_epoch=row[2], occurred_at=row[4], sync=decode(WeightSync, row[5])
    )


class FleetTables(HubStore):
    """Tables `workers`, `probes`, `syncs`, `events` and `counters`."""

    _journal: JournalConnection

    def put_worker(self, worker: WorkerRow) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("worker")
        probe = worker.last_probe
        # Without its count of completions, which grows with every submission.
        values = (
            worker.request.worker_name,
            worker.worker_epoch,
            encode(worker.request),
            int(worker.state),
            worker.state_reason,
            None if probe is None else encode(dataclasses.replace(probe, log_probs=None)),
            int(worker.must_pass_probe),
            int(worker.draining),
            json.dumps(worker.former_boot_ids),
        )
        self._journal.execute(_PUT_WORKER, (*values, worker.completions, row_sum(values)))

    def worker(self, worker_name: str) -> WorkerRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("worker", worker_name, lambda: self._worker(worker_name))

    def _worker(self, worker_name: str) -> WorkerRow | None:
        row = self._journal.row(f"{_SELECT_WORKER} WHERE worker_name = ?", (worker_name,))
        return None if row is None else self._checked_worker(row)

    def _checked_worker(self, row: Row) -> WorkerRow:
        self._journal.sums.require(f"worker {row[2]!r}", row[1], row[2:])
        return _worker_row(row)

    def workers(self) -> tuple[WorkerRow, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(f"{_SELECT_WORKER} ORDER BY worker_name")
        return tuple(map(self._checked_worker, rows))

    def add_completions(self, worker_name: str, completions: int) -> None:
        """See `HubStore`."""
        worker = self.worker(worker_name)
        if worker is not None:
            self._journal.cache.put("worker", worker_name, worker.with_completions(completions))
            self._journal.put_off(_ADD_COMPLETIONS, (completions, worker_name))

    def add_probe(self, probe: ProbeRow) -> None:
        """See `HubStore`."""
        result = probe.result
        values = (
            probe.worker_name,
            probe.worker_epoch,
            probe.numerics_id,
            int(probe.accepted),
            real(probe.occurred_at),
            result.weight_version,
            real(result.mean_absolute_difference),
            real(result.max_absolute_difference),
            real(result.mean_difference),
            result.tokens,
        )
        found = row_sum(values, result.log_probs)
        self._journal.execute(_INSERT_PROBE, (*values, result.log_probs, found))

    def probes(self, worker_name: str) -> tuple[ProbeRow, ...]:
        """See `HubStore`."""
        found = []
        for row in self._journal.rows(_SELECT_PROBES, (worker_name,)):
            if self._journal.sums.fits(row[-1], row[:-2], row[-2]):
                found.append(_probe_row(row))
            else:
                self._journal.note_damage(f"a probe card of worker {worker_name}")
        return tuple(found)

    def add_sync(self, row: SyncRow) -> bool:
        """See `HubStore`."""
        values = (
            row.worker_name,
            row.worker_epoch,
            row.sync.weight_version,
            real(row.occurred_at),
            encode(row.sync),
        )
        statement = "INSERT OR IGNORE INTO syncs VALUES (NULL, ?, ?, ?, ?, ?, ?)"
        return self._journal.update(statement, (*values, row_sum(values))) == 1

    def syncs(self) -> tuple[SyncRow, ...]:
        """See `HubStore`."""
        found = []
        for row in self._journal.rows(SELECT_SYNCS):
            if self._journal.sums.fits(row[0], row[1:]):
                found.append(sync_row(row))
            else:
                self._journal.note_damage(f"how worker {row[1]} came to weight version {row[3]}")
        return tuple(found)

    def add_event(self, occurred_at: float, kind: str, worker_name: str, message: str) -> None:
        """See `HubStore`."""
        self._journal.execute(
            "INSERT INTO events VALUES (NULL, ?, ?, ?, ?)", (occurred_at, kind, worker_name, message)
        )

    def events(self, after_sequence: int, limit: int) -> tuple[Event, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(
            "SELECT sequence, occurred_at, kind, worker_name, message FROM events WHERE sequence > ? "
            "ORDER BY sequence LIMIT ?",
            (after_sequence, limit),
        )
        return tuple(
            Event(sequence=row[0], occurred_at=row[1], kind=row[2], worker_name=row[3], message=row[4])
            for row in rows
        )

    def count(self, counter: str, amount: int = 1) -> None:
        """See `HubStore`."""
        self._journal.execute(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            (counter, amount),
        )

    def counters(self) -> Mapping[str, int]:
        """See `HubStore`."""
        return dict(self._journal.rows("SELECT name, value FROM counters WHERE value != 0 ORDER BY name"))
