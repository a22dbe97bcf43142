"""The hub's view of a run: fetched at once, as plain values, as records for JSON."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from hetero_rl.calibration.store import calibrated_ids
from hetero_rl.config.tree import CostConfig
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.observe.backends import summarize_backends
from hetero_rl.observe.costs import BackendCost, backend_costs, seconds_present, trained_tokens
from hetero_rl.observe.past import read_metrics
from hetero_rl.observe.scaling import scale_hint
from hetero_rl.wire.messages import Event, QueueCounts, RunStatus, WorkerSummary
from hetero_rl.wire.ports import FleetPort

__all__ = ["FleetSnapshot", "fetch_fleet", "fleet_record"]

RECENT_EVENTS = 8
# `list_events` pages forward; a run's history is short enough to page through, and the position is kept between calls.
EVENT_PAGE = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What the hub knew at one moment."""

    status: RunStatus
    workers: tuple[WorkerSummary, ...]
    events: tuple[Event, ...]
    """The newest, oldest first."""
    history: tuple[Event, ...] = ()
    """What the next snapshot goes on from: all of them where costs are asked for, else the newest."""
    costs: tuple[BackendCost, ...] = ()
    """Of backends that have a price."""
    currency: str = ""
    calibrated: frozenset[str] = frozenset()
    """Numerics ids that were calibrated for the run's model, as this machine and the run's directory know."""

    @property
    def uncalibrated(self) -> tuple[WorkerSummary, ...]:
        """Workers whose numbers nobody has compared with the trainer's yet."""
        return tuple(worker for worker in self.workers if worker.numerics.numerics_id not in self.calibrated)


def fetch_fleet(
    fleet: FleetPort,
    *,
    include_gone: bool = False,
    after: FleetSnapshot | None = None,
    run_dir: Path | None = None,
    prices: CostConfig | None = None,
) -> FleetSnapshot:
    """Asks the hub for everything that a person may want to see.

    Args:
        fleet: Client of the hub.
        include_gone: Whether workers that died or left are listed.
        after: An earlier snapshot; only newer events are asked for.
        run_dir: Directory of the run, where calibrations of it and its metrics may lie.
        prices: What devices cost; None, or none in it, asks for no costs.
    """
    priced = prices if prices is not None and prices.device_hour else None
    # Costs need the whole history: who was there, and for how long.
    kept = None if priced else RECENT_EVENTS
    events = after.history if after is not None else ()
    while page := fleet.list_events(events[-1].sequence if events else 0, EVENT_PAGE):
        events = _newest((*events, *page), kept)
        if len(page) < EVENT_PAGE:
            break
    status = fleet.run_status()
    workers = fleet.list_workers(include_gone=include_gone)
    return FleetSnapshot(
        status,
        workers,
        events[-RECENT_EVENTS:],
        history=events,
        costs=() if priced is None else _costs(priced, workers, events, run_dir),
        currency="" if priced is None else priced.currency,
        calibrated=calibrated_ids(status.run.model_digests.config, run_dir) if status.run else frozenset(),
    )


def _newest(events: tuple[Event, ...], kept: int | None) -> tuple[Event, ...]:
    return events if kept is None else events[-kept:]


def _costs(
    prices: CostConfig, workers: tuple[WorkerSummary, ...], events: tuple[Event, ...], run_dir: Path | None
) -> tuple[BackendCost, ...]:
    trained = {} if run_dir is None else trained_tokens(read_metrics(RunDirectory(run_dir).metrics))
    return backend_costs(prices, workers, seconds_present(events, time.time()), trained)


def fleet_record(snapshot: FleetSnapshot) -> dict[str, object]:
    """A snapshot as JSON values."""
    status = snapshot.status
    run = status.run
    return {
        "running": True,
        "run_id": run.run_id if run else None,
        "step": status.step,
        "total_steps": status.total_steps,
        "latest_weight_version": run.latest_weight_version if run else 0,
        "adapter_weights": bool(run and run.adapter_weights),
        "max_lag": status.max_lag,
        "groups_per_step": status.groups_per_step,
        "trainer_connected": status.trainer_connected,
        "uptime_seconds": status.uptime,
        "model_digests": dataclasses.asdict(run.model_digests) if run else None,
        "training_groups": _counts(status.training),
        "evaluation_groups": _counts(status.evaluation),
        "counters": dict(status.counters),
        "waits_for": scale_hint(status, snapshot.workers).value,
        "backends": [dataclasses.asdict(backend) for backend in summarize_backends(snapshot.workers)],
        "costs": [dataclasses.asdict(cost) for cost in snapshot.costs],
        "currency": snapshot.currency,
        "workers": [_worker_record(worker, snapshot.calibrated) for worker in snapshot.workers],
        "events": [dataclasses.asdict(event) for event in snapshot.events],
    }


def _counts(counts: QueueCounts) -> Mapping[str, int]:
    return dataclasses.asdict(counts)


def _worker_record(worker: WorkerSummary, calibrated: frozenset[str]) -> dict[str, object]:
    probe = worker.last_probe
    return {
        "name": worker.worker_name,
        "epoch": worker.worker_epoch,
        "backend": worker.backend,
        "state": worker.state.name.lower(),
        "state_reason": worker.state_reason,
        "numerics_id": worker.numerics.numerics_id,
        "calibrated": worker.numerics.numerics_id in calibrated,
        "emulated": worker.numerics.emulated,
        "device": worker.numerics.device_name,
        "engine": f"{worker.numerics.engine} {worker.numerics.engine_version}",
        "loaded_weight_version": worker.loaded_weight_version,
        "leases": worker.leases,
        "completions": worker.completions,
        "generated_tokens": worker.generated_tokens,
        "busy_seconds": worker.busy_seconds,
        "silence_seconds": worker.silence,
        "probe_mean_absolute_difference": probe.mean_absolute_difference if probe else None,
        "probe_max_absolute_difference": probe.max_absolute_difference if probe else None,
    }
