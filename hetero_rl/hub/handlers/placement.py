"""Who gets how much of the work that is there, and which part of a group.

Whole groups and plenty of work: whoever has room takes the next group, so each worker gets work in proportion to its speed.
Near the end of what the gate lets start, a slow worker with much room would take a large part at once and hold up the step.
So the open work is shared out in proportion to measured speed (`shares`), and a worker that holds its share waits. Work
beyond what all engines decode at once is shared out likewise, for workers that ask ahead.

With `placement.split_groups` the completions of a training group go to several backends: each lease takes a part, and
prefers groups of which its backend has none.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from hetero_rl.hub.handlers.context import HubContext
from hetero_rl.hub.stores.records import GroupRow, LeaseRow, WorkerRow
from hetero_rl.wire.messages import Purpose, WorkerState

__all__ = ["Measured", "Parts", "measured_workers", "open_share", "shares"]

_LEAST_SECONDS = 1.0
"""Seconds of generation after which a worker's speed counts as measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a worker."""

    speed: float
    """Tokens per second while it generates."""
    capacity: int
    """Most completions at once."""


def shares(work: int, workers: Mapping[str, Measured]) -> dict[str, float]:
    """Shares open work out in proportion to speed; what exceeds a worker's capacity goes to the others.

    Args:
        work: Completions that are running or may start.
        workers: At least one, each of a speed above 0.

    Returns:
        Completions for each worker; they sum to the smaller of the work and all capacities.
    """
    given = dict.fromkeys(workers, 0.0)
    left, open_to = float(work), dict(workers)
    while open_to and left > 0:
        total = sum(worker.speed for worker in open_to.values())
        full = {
            name: worker for name, worker in open_to.items() if left * worker.speed / total >= worker.capacity
        }
        if not full:
            for name, worker in open_to.items():
                given[name] = left * worker.speed / total
            break
        for name, worker in full.items():
            given[name] = float(worker.capacity)
            del open_to[name]
        left -= sum(worker.capacity for worker in full.values())
    return given


def open_share(
    context: HubContext, worker: WorkerRow, measured: Mapping[str, Measured], startable: int
) -> float:
    """Completions that a worker may take now; below 0 when it holds more than its share.

    Args:
        context: The hub.
        worker: Who asks; one of those measured.
        measured: Workers whose speed is known.
        startable: Completions that are queued and may start.
    """
    held: Counter[str] = Counter()
    for lease in context.store.leases():
        held[lease.worker_name] += len(lease.sample_indices)
    name = worker.request.worker_name
    work = startable + held.total()
    # What no engine has room for may wait in their queues, so that none of them runs dry while it asks.
    ahead = max(0, work - sum(each.capacity for each in measured.values()))
    return shares(work, measured)[name] + shares(ahead, measured)[name] - held[name]


def measured_workers(context: HubContext) -> dict[str, Measured]:
    """Workers that are at work and whose speed is known, by name."""
    found = {}
    for worker in context.store.workers():
        report = context.liveness.reports.get(worker.request.worker_name)
        if worker.state is not WorkerState.ACTIVE or report is None:
            continue
        if report.busy_seconds >= _LEAST_SECONDS and report.generated_tokens > 0:
            speed = report.generated_tokens / report.busy_seconds
            capacity = worker.request.capabilities.max_concurrent_sequences
            found[worker.request.worker_name] = Measured(speed, capacity)
    return found


class Parts:
    """Which sample indices of a queued group a worker would get.

    Args:
        context: The hub.
        worker: Who asks.
    """

    def __init__(self, context: HubContext, worker: WorkerRow) -> None:
        self._context = context
        self._backend = worker.request.backend
        self._leases: dict[str, list[LeaseRow]] = {}
        self._backends: dict[str, str] = {}
        if context.settings.split_groups:
            for lease in context.store.leases():
                self._leases.setdefault(lease.group_id, []).append(lease)
            active = (other for other in context.store.workers() if other.state is WorkerState.ACTIVE)
            self._backends = {other.request.worker_name: other.request.backend for other in active}

    def of(self, row: GroupRow) -> tuple[int, ...]:
        """Indices for one lease: all that are missing, or a part of a training group that is to be spread."""
        missing = self.missing(row)
        if not self._spread(row):
            return missing
        backends = max(1, len(set(self._backends.values())))
        return missing[: -(-row.group_size // backends)]

    def missing(self, row: GroupRow) -> tuple[int, ...]:
        """Indices that are neither stored nor leased."""
        taken = set(self._context.store.stored_indices(row.group_id)) if row.stored else set()
        for lease in self._leases.get(row.group_id, ()):
            taken.update(lease.sample_indices)
        return tuple(index for index in range(row.group_size) if index not in taken)

    def shared(self, row: GroupRow) -> bool:
        """Whether somebody works on another part of the group."""
        return bool(self._leases.get(row.group_id))

    def avoided(self, row: GroupRow) -> bool:
        """Whether the worker's backend has a part of a group that is to be spread, so another group is better."""
        if not self._spread(row):
            return False
        at_work = {self._backends.get(lease.worker_name) for lease in self._leases.get(row.group_id, ())}
        done = {item.backend for item in self._context.store.batches(row.group_id)} if row.stored else set()
        return self._backend in at_work | done

    def _spread(self, row: GroupRow) -> bool:
        return self._context.settings.split_groups and row.purpose is Purpose.TRAIN
