"""What each backend's tokens cost, from prices of a device's hour. Pure.

A backend is paid for while its workers are there, at work or waiting: from joining to leaving or dying, by the hub's history. Tokens that
were generated but dropped, or that only serve evaluations, are paid for as well: that is the difference between the two figures.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hetero_rl.config.tree import CostConfig
from hetero_rl.wire.messages import Event, WorkerSummary

__all__ = ["BackendCost", "backend_costs", "seconds_present", "trained_tokens"]

TRAINED_PREFIX = "trained_tokens/"
_BEGINS = frozenset({"worker_joined", "worker_returned"})
_ENDS = frozenset({"worker_left", "worker_dead"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendCost:
    """What the workers of one backend have cost so far."""

    backend: str
    device_hours: float
    cost: float
    """In the unit of the prices."""
    per_million_generated: float | None
    """Cost of a million completion tokens that were generated; None before any."""
    per_million_trained: float | None
    """Cost of a million completion tokens that were trained on; None before any, or where that is not known."""


def seconds_present(events: Sequence[Event], now: float) -> dict[str, float]:
    """Seconds that each worker was there.

    Args:
        events: The whole history, oldest first.
        now: Seconds since the epoch, by the hub's clock.
    """
    present: defaultdict[str, float] = defaultdict(float)
    since: dict[str, float] = {}
    for event in events:
        if event.kind in _BEGINS:
            since.setdefault(event.worker_name, event.occurred_at)
        elif event.kind in _ENDS and event.worker_name in since:
            present[event.worker_name] += event.occurred_at - since.pop(event.worker_name)
    for name, began in since.items():
        present[name] += max(0.0, now - began)
    return dict(present)


def trained_tokens(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Completion tokens of each backend that were trained on, from the lines of metrics.jsonl."""
    summed: defaultdict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record.items():
            if name.startswith(TRAINED_PREFIX) and value is not None:
                summed[name.removeprefix(TRAINED_PREFIX)] += value
    return dict(summed)


def backend_costs(
    prices: CostConfig,
    workers: Sequence[WorkerSummary],
    present: Mapping[str, float],
    trained: Mapping[str, float],
) -> tuple[BackendCost, ...]:
    """One for each backend that has a price, by name.

    Args:
        prices: Of a device's hour, and devices of a worker.
        workers: All that are known, gone ones too.
        present: Seconds that each was there.
        trained: Completion tokens that were trained on, by backend.
    """
    return tuple(
        _cost(prices, name, [worker for worker in workers if worker.backend == name], present, trained)
        for name in sorted({worker.backend for worker in workers})
        if name in prices.device_hour
    )


def _cost(
    prices: CostConfig,
    name: str,
    workers: Sequence[WorkerSummary],
    present: Mapping[str, float],
    trained: Mapping[str, float],
) -> BackendCost:
    seconds = sum(present.get(worker.worker_name, 0.0) for worker in workers)
    hours = seconds / 3600 * prices.devices_per_worker.get(name, 1)
    cost = hours * prices.device_hour[name]
    generated = sum(worker.generated_tokens for worker in workers)
    return BackendCost(
        backend=name,
        device_hours=hours,
        cost=cost,
        per_million_generated=_per_million(cost, generated),
        per_million_trained=_per_million(cost, trained.get(name, 0.0)),
    )


def _per_million(cost: float, tokens: float) -> float | None:
    return cost / tokens * 1e6 if tokens > 0 else None
