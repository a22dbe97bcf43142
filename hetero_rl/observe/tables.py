"""The hub's view of a run as tables for a terminal: pure functions from snapshots to renderables."""

import datetime as dt
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero_rl.observe.backends import BackendSummary, busy_rate, summarize_backends
from hetero_rl.observe.costs import BackendCost
from hetero_rl.observe.fleet import FleetSnapshot
from hetero_rl.observe.progress import duration
from hetero_rl.observe.scaling import ADVICE, scale_hint
from hetero_rl.wire.messages import Event, RunStatus, WorkerState, WorkerSummary

__all__ = [
    "backend_table",
    "cost_table",
    "event_line",
    "fleet_view",
    "headline",
    "queue_table",
    "short_number",
    "worker_table",
]

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
    status = snapshot.status
    parts: list[RenderableType] = [headline(status), Text(), queue_table(status), Text()]
    parts.append(worker_table(snapshot.workers))
    backends = summarize_backends(snapshot.workers)
    if len(backends) > 1:
        parts += [Text(), backend_table(backends)]
    if snapshot.costs:
        parts += [Text(), cost_table(snapshot.costs, snapshot.currency)]
    if status.run is not None:
        parts += [Text(), Text(f"now: {ADVICE[scale_hint(status, snapshot.workers)]}")]
    if snapshot.uncalibrated:
        parts.append(_uncalibrated_line(snapshot))
    if counters := {name: count for name, count in status.counters.items() if count}:
        parts += [
            Text(),
            Text("counted  " + "  ".join(f"{name} {count}" for name, count in counters.items())),
        ]
    if snapshot.events:
        parts += [Text(), *(event_line(event) for event in snapshot.events)]
    return Group(*parts)


def worker_table(
    workers: Sequence[WorkerSummary], rates: Mapping[str, float] | None = None
) -> RenderableType:
    """One line for each worker.

    Args:
        workers: In the order of the lines.
        rates: Tokens per second by name; None shows the mean while each engine was busy.
    """
    if not workers:
        return Text("no worker has joined yet", style="yellow")
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("worker")
    table.add_column("backend")
    table.add_column("state")
    for column in ("weights", "leases", "samples", "tokens", "tok/s", "gap", "seen"):
        table.add_column(column, justify="right")
    for worker in workers:
        rate = busy_rate(worker) if rates is None else rates.get(worker.worker_name)
        table.add_row(*_worker_cells(worker, rate))
    return table


def backend_table(backends: Sequence[BackendSummary]) -> Table:
    """One line for each backend."""
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("backend")
    for column in ("active", "tok/s", "of all tokens", "tok per busy second", "gap", "largest"):
        table.add_column(column, justify="right")
    for backend in backends:
        table.add_row(
            backend.name,
            f"{backend.active} of {backend.workers}",
            _number(backend.rate),
            f"{backend.token_share:.0%}",
            _number(backend.busy_rate),
            "-" if backend.gap_mean is None else f"{backend.gap_mean:.1e}",
            "-" if backend.gap_max is None else f"{backend.gap_max:.1e}",
        )
    return table


def cost_table(costs: Sequence[BackendCost], currency: str) -> Table:
    """One line for each backend that has a price."""
    unit = f" {currency}" if currency else ""
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("cost")
    for column in (
        "device hours",
        f"cost{unit}",
        f"per million generated{unit}",
        f"per million trained{unit}",
    ):
        table.add_column(column, justify="right")
    for cost in costs:
        table.add_row(
            cost.backend,
            f"{cost.device_hours:.2f}",
            f"{cost.cost:.2f}",
            "-" if cost.per_million_generated is None else f"{cost.per_million_generated:.2f}",
            "-" if cost.per_million_trained is None else f"{cost.per_million_trained:.2f}",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else short_number(value)


def _worker_cells(worker: WorkerSummary, rate: float | None) -> tuple[str | Text, ...]:
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
        _number(rate),
        "-" if probe is None else f"{probe.mean_absolute_difference:.1e}",
        f"{worker.silence:.0f}s ago",
    )


def _uncalibrated_line(snapshot: FleetSnapshot) -> Text:
    ids = {worker.numerics.numerics_id: worker for worker in snapshot.uncalibrated}
    named = ", ".join(f"{worker.worker_name} (numerics {numerics_id})" for numerics_id, worker in ids.items())
    return Text(f"uncalibrated: {named}; measure with hetero-rl calibrate", style="yellow")


def headline(status: RunStatus) -> Text:
    """The run in one line."""
    if status.run is None:
        return Text(f"hub up {duration(status.uptime)}, no trainer has opened a run yet", style="yellow")
    trainer = "trainer connected" if status.trainer_connected else "no trainer connected"
    return Text.assemble(
        (status.run.run_id, "bold"),
        f"  step {status.step}/{status.total_steps}",
        f"  weights v{status.run.latest_weight_version}{' (adapters)' if status.run.adapter_weights else ''}",
        f"  max lag {status.max_lag}",
        f"  hub up {duration(status.uptime)}  ",
        (trainer, "green" if status.trainer_connected else "yellow"),
    )


def queue_table(status: RunStatus) -> Table:
    """Groups by purpose and stage."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("groups")
    stages = ("queued", "leased", "finished", "taken", "committed")
    for stage in stages:
        table.add_column(stage, justify="right")
    for name, counts in (("training", status.training), ("evaluation", status.evaluation)):
        table.add_row(name, *(str(getattr(counts, stage)) for stage in stages))
    return table


def event_line(event: Event) -> Text:
    """An entry of the history."""
    moment = dt.datetime.fromtimestamp(event.occurred_at).astimezone()
    worker = f"{event.worker_name}: " if event.worker_name else ""
    return Text(f"{moment:%H:%M:%S}  {event.kind}  {worker}{event.message}", style="dim")
