"""The hub's view of a run as tables for a terminal: pure functions from snapshots to renderables."""

import datetime as dt

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero_rl.observe.fleet import FleetSnapshot
from hetero_rl.observe.progress import duration
from hetero_rl.wire.messages import Event, RunStatus, WorkerState, WorkerSummary

__all__ = ["fleet_view", "short_number", "worker_table"]

_STATE_STYLES = {
    WorkerState.ACTIVE: "green",
    WorkerState.DRAINING: "yellow",
    WorkerState.QUARANTINED: "bold red",
    WorkerState.DEAD: "red",
    WorkerState.LEFT: "dim",
}


def short_number(value: float) -> str:
    """A count in at most five characters, such as 12.3k."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scaled = value / (1e3 if suffix == "k" else size)
            return f"{scaled:.0f}{suffix}" if scaled >= 100 else f"{scaled:.1f}{suffix}"
    return f"{value:.0f}"


def fleet_view(snapshot: FleetSnapshot) -> RenderableType:
    """Run, queues, workers, counters and recent events."""
    parts: list[RenderableType] = [_headline(snapshot.status), Text(), _queues(snapshot.status), Text()]
    parts.append(worker_table(snapshot.workers))
    if snapshot.uncalibrated:
        parts.append(_uncalibrated_line(snapshot))
    if counters := {name: count for name, count in snapshot.status.counters.items() if count}:
        parts += [
            Text(),
            Text("counted  " + "  ".join(f"{name} {count}" for name, count in counters.items())),
        ]
    if snapshot.events:
        parts += [Text(), *(_event_line(event) for event in snapshot.events)]
    return Group(*parts)


def worker_table(workers: tuple[WorkerSummary, ...]) -> RenderableType:
    """One line for each worker."""
    if not workers:
        return Text("no worker has joined yet", style="yellow")
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("worker")
    table.add_column("backend")
    table.add_column("state")
    for column in ("weights", "leases", "samples", "tokens", "tok/s", "gap", "seen"):
        table.add_column(column, justify="right")
    for worker in workers:
        table.add_row(*_worker_cells(worker))
    return table


def _worker_cells(worker: WorkerSummary) -> tuple[str | Text, ...]:
    rate = worker.generated_tokens / worker.busy_seconds if worker.busy_seconds > 0 else None
    probe = worker.last_probe
    state = worker.state.name.lower()
    return (
        worker.worker_name,
        worker.backend,
        Text(
            f"{state}: {worker.state_reason}" if worker.state_reason else state, _STATE_STYLES[worker.state]
        ),
        f"v{worker.loaded_weight_version}",
        str(worker.leases),
        short_number(worker.completions),
        short_number(worker.generated_tokens),
        "-" if rate is None else short_number(rate),
        "-" if probe is None else f"{probe.mean_absolute_difference:.1e}",
        f"{worker.silence:.0f}s ago",
    )


def _uncalibrated_line(snapshot: FleetSnapshot) -> Text:
    ids = {worker.numerics.numerics_id: worker for worker in snapshot.uncalibrated}
    named = ", ".join(f"{worker.worker_name} (numerics {numerics_id})" for numerics_id, worker in ids.items())
    return Text(f"uncalibrated: {named}; measure with hetero-rl calibrate", style="yellow")


def _headline(status: RunStatus) -> Text:
    if status.run is None:
        return Text(f"hub up {duration(status.uptime)}, no trainer has opened a run yet", style="yellow")
    trainer = "trainer connected" if status.trainer_connected else "no trainer connected"
    return Text.assemble(
        (status.run.run_id, "bold"),
        f"  step {status.step}/{status.total_steps}",
        f"  weights v{status.run.latest_weight_version}",
        f"  max lag {status.max_lag}",
        f"  hub up {duration(status.uptime)}  ",
        (trainer, "green" if status.trainer_connected else "yellow"),
    )


def _queues(status: RunStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("groups")
    stages = ("queued", "leased", "finished", "taken", "committed")
    for stage in stages:
        table.add_column(stage, justify="right")
    for name, counts in (("training", status.training), ("evaluation", status.evaluation)):
        table.add_row(name, *(str(getattr(counts, stage)) for stage in stages))
    return table


def _event_line(event: Event) -> Text:
    moment = dt.datetime.fromtimestamp(event.occurred_at).astimezone()
    worker = f"{event.worker_name}: " if event.worker_name else ""
    return Text(f"{moment:%H:%M:%S}  {event.kind}  {worker}{event.message}", style="dim")
