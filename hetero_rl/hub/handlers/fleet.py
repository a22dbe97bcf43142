"""What people and dashboards ask: the workers, the run at a glance, what happened."""

from collections.abc import Mapping

from hetero_rl.hub.handlers.context import HubContext, WorkerReport
from hetero_rl.hub.handlers.runs import description_of
from hetero_rl.hub.stores.records import GroupState, WorkerRow
from hetero_rl.wire.messages import Event, Purpose, QueueCounts, RunStatus, WorkerState, WorkerSummary

__all__ = ["list_events", "list_workers", "run_status"]

_MOST_EVENTS = 1000
_GONE = {WorkerState.DEAD, WorkerState.LEFT}


def list_workers(context: HubContext, *, include_gone: bool) -> tuple[WorkerSummary, ...]:
    """Workers by name."""
    return tuple(
        _summary(context, worker)
        for worker in context.store.workers()
        if include_gone or worker.state not in _GONE
    )


def _summary(context: HubContext, worker: WorkerRow) -> WorkerSummary:
    request, name = worker.request, worker.request.worker_name
    report = context.liveness.reports.get(name, WorkerReport())
    now = context.clock.monotonic()
    return WorkerSummary(
        worker_name=name,
        worker_epoch=worker.worker_epoch,
        backend=request.backend,
        state=worker.state,
        state_reason=worker.state_reason,
        capabilities=request.capabilities,
        numerics=request.numerics,
        loaded_weight_version=report.loaded_weight_version,
        leases=len(context.store.leases(name)),
        completions=worker.completions,
        generated_tokens=report.generated_tokens,
        busy_seconds=report.busy_seconds,
        silence=now - context.liveness.seen.get(name, context.started_at),
        last_probe=worker.last_probe,
    )


def run_status(context: HubContext) -> RunStatus:
    """The run at a glance, also before a trainer opened one."""
    run = context.store.run()
    counts = context.store.group_counts()
    request = run.request if run else None
    return RunStatus(
        run=description_of(context, run) if run else None,
        step=run.committed_step if run else 0,
        total_steps=request.total_steps if request else 0,
        training=_queue_counts(counts, Purpose.TRAIN),
        evaluation=_queue_counts(counts, Purpose.EVALUATION),
        counters=context.store.counters(),
        trainer_connected=context.liveness.trainer_connected,
        uptime=context.clock.monotonic() - context.started_at,
        groups_per_step=request.groups_per_step if request else 0,
        max_lag=request.max_lag if request else 0,
    )


def _queue_counts(counts: Mapping[tuple[Purpose, GroupState], int], purpose: Purpose) -> QueueCounts:
    return QueueCounts(**{state.name.lower(): counts.get((purpose, state), 0) for state in GroupState})


def list_events(context: HubContext, after_sequence: int, limit: int) -> tuple[Event, ...]:
    """What happened after a position, oldest first; at most 1000 at once."""
    return context.store.events(after_sequence, min(limit or _MOST_EVENTS, _MOST_EVENTS))
