"""Workers, probe cards, scores, events and counters in memory."""

import dataclasses
from collections.abc import Mapping

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.memory_tables import Tables
from hetero_rl.hub.stores.records import (
    ProbeRow,
    ScoreRow,
    ScoreState,
    SubmissionId,
    SyncRow,
    WorkerRow,
)
from hetero_rl.wire.messages import (
    Event,
)

__all__ = ["MemoryFleet"]


class MemoryFleet(HubStore):
    """Tables `workers`, `probes`, `syncs`, `scores`, `events` and `counters`."""

    _tables: Tables

    def put_worker(self, worker: WorkerRow) -> None:
        """See `HubStore`."""
        probe = worker.last_probe
        if probe is not None:
            worker = dataclasses.replace(worker, last_probe=dataclasses.replace(probe, log_probs=None))
        self._tables.workers[worker.request.worker_name] = worker

    def worker(self, worker_name: str) -> WorkerRow | None:
        """See `HubStore`."""
        return self._tables.workers.get(worker_name)

    def workers(self) -> tuple[WorkerRow, ...]:
        """See `HubStore`."""
        return tuple(worker for _, worker in sorted(self._tables.workers.items()))

    def add_completions(self, worker_name: str, completions: int) -> None:
        """See `HubStore`."""
        worker = self._tables.workers[worker_name]
        self._tables.workers[worker_name] = dataclasses.replace(
            worker, completions=worker.completions + completions
        )

    def add_probe(self, probe: ProbeRow) -> None:
        """See `HubStore`."""
        self._tables.probes.append(probe)

    def probes(self, worker_name: str) -> tuple[ProbeRow, ...]:
        """See `HubStore`."""
        return tuple(probe for probe in self._tables.probes if probe.worker_name == worker_name)

    def add_sync(self, row: SyncRow) -> bool:
        """See `HubStore`."""
        key = (row.worker_name, row.worker_epoch, row.sync.weight_version)
        return self._tables.syncs.setdefault(key, row) is row

    def syncs(self) -> tuple[SyncRow, ...]:
        """See `HubStore`."""
        return tuple(self._tables.syncs.values())

    def put_score(self, row: ScoreRow) -> None:
        """See `HubStore`."""
        self._tables.scores[row.score_id] = row

    def score(self, score_id: str) -> ScoreRow | None:
        """See `HubStore`."""
        return self._tables.scores.get(score_id)

    def queued_scores(self, worker_name: str) -> tuple[ScoreRow, ...]:
        """See `HubStore`."""
        rows = (row for _, row in sorted(self._tables.scores.items()))
        return tuple(row for row in rows if row.worker_name == worker_name and row.state is ScoreState.QUEUED)

    def count_scores(self) -> int:
        """See `HubStore`."""
        return len(self._tables.scores)

    def has_score_submission(self, key: SubmissionId) -> bool:
        """See `HubStore`."""
        return any(row.submission == key for row in self._tables.scores.values())

    def add_event(self, occurred_at: float, kind: str, worker_name: str, message: str) -> None:
        """See `HubStore`."""
        event = Event(
            sequence=len(self._tables.events) + 1,
            occurred_at=occurred_at,
            kind=kind,
            worker_name=worker_name,
            message=message,
        )
        self._tables.events.append(event)

    def events(self, after_sequence: int, limit: int) -> tuple[Event, ...]:
        """See `HubStore`."""
        return tuple(self._tables.events[after_sequence : after_sequence + limit])

    def count(self, counter: str, amount: int = 1) -> None:
        """See `HubStore`."""
        self._tables.counters[counter] = self._tables.counters.get(counter, 0) + amount

    def counters(self) -> Mapping[str, int]:
        """See `HubStore`."""
        return {name: value for name, value in sorted(self._tables.counters.items()) if value}
