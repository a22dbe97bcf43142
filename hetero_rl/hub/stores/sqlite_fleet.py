"""Statements on workers, probe cards, events and counters."""

import dataclasses
import json
from collections.abc import Mapping

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.codec import decode, encode
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import ProbeRow, SyncRow, WorkerRow
from hetero_rl.wire.columns import Float32Bytes
from hetero_rl.wire.messages import Event, JoinRequest, ProbeResult, WeightSync, WorkerState

__all__ = ["SELECT_SYNCS", "FleetTables", "sync_row"]

_SELECT_WORKER = (
    "SELECT request, worker_epoch, state, state_reason, completions, last_probe, must_pass_probe, draining, "
    "former_boot_ids FROM workers"
)
_SELECT_PROBES = """
SELECT worker_name, worker_epoch, numerics_id, accepted, occurred_at, weight_version, mean_absolute_difference,
    max_absolute_difference, mean_difference, tokens, log_probs
FROM probes WHERE worker_name = ? ORDER BY probe_id
"""
SELECT_SYNCS = "SELECT worker_name, worker_epoch, occurred_at, sync FROM syncs ORDER BY sync_id"


def _worker_row(row: Row) -> WorkerRow:
    return WorkerRow(
        request=decode(JoinRequest, row[0]),
        worker_epoch=row[1],
        state=WorkerState(row[2]),
        state_reason=row[3],
        completions=row[4],
        last_probe=None if row[5] is None else decode(ProbeResult, row[5]),
        must_pass_probe=bool(row[6]),
        draining=bool(row[7]),
        former_boot_ids=tuple(json.loads(row[8])),
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
        worker_name=row[0], worker_epoch=row[1], occurred_at=row[2], sync=decode(WeightSync, row[3])
    )


class FleetTables(HubStore):
    """Tables `workers`, `probes`, `syncs`, `events` and `counters`."""

    _journal: JournalConnection

    def put_worker(self, worker: WorkerRow) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("worker")
        probe = worker.last_probe
        self._journal.execute(
            "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                worker.request.worker_name,
                worker.worker_epoch,
                encode(worker.request),
                int(worker.state),
                worker.state_reason,
                worker.completions,
                None if probe is None else encode(dataclasses.replace(probe, log_probs=None)),
                worker.must_pass_probe,
                worker.draining,
                json.dumps(worker.former_boot_ids),
            ),
        )

    def worker(self, worker_name: str) -> WorkerRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("worker", worker_name, lambda: self._worker(worker_name))

    def _worker(self, worker_name: str) -> WorkerRow | None:
        row = self._journal.row(f"{_SELECT_WORKER} WHERE worker_name = ?", (worker_name,))
        return None if row is None else _worker_row(row)

    def workers(self) -> tuple[WorkerRow, ...]:
        """See `HubStore`."""
        return tuple(map(_worker_row, self._journal.rows(f"{_SELECT_WORKER} ORDER BY worker_name")))

    def add_completions(self, worker_name: str, completions: int) -> None:
        """See `HubStore`."""
        worker = self.worker(worker_name)
        if worker is not None:
            worker = dataclasses.replace(worker, completions=worker.completions + completions)
            self._journal.cache.put("worker", worker_name, worker)
        self._journal.execute(
            "UPDATE workers SET completions = completions + ? WHERE worker_name = ?",
            (completions, worker_name),
        )

    def add_probe(self, probe: ProbeRow) -> None:
        """See `HubStore`."""
        result = probe.result
        self._journal.execute(
            "INSERT INTO probes VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                probe.worker_name,
                probe.worker_epoch,
                probe.numerics_id,
                result.weight_version,
                result.mean_absolute_difference,
                result.max_absolute_difference,
                result.mean_difference,
                result.tokens,
                probe.accepted,
                probe.occurred_at,
                result.log_probs,
            ),
        )

    def probes(self, worker_name: str) -> tuple[ProbeRow, ...]:
        """See `HubStore`."""
        return tuple(map(_probe_row, self._journal.rows(_SELECT_PROBES, (worker_name,))))

    def add_sync(self, row: SyncRow) -> bool:
        """See `HubStore`."""
        values = (
            row.worker_name,
            row.worker_epoch,
            row.sync.weight_version,
            row.occurred_at,
            encode(row.sync),
        )
        return self._journal.update("INSERT OR IGNORE INTO syncs VALUES (NULL, ?, ?, ?, ?, ?)", values) == 1

    def syncs(self) -> tuple[SyncRow, ...]:
        """See `HubStore`."""
        return tuple(map(sync_row, self._journal.rows(SELECT_SYNCS)))

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
