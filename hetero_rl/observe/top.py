"""The full-screen view of `hetero-rl top`: pure functions over a minute of the hub's answers."""

import itertools
from collections import Counter, deque
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hetero_rl.observe.backends import summarize_backends
from hetero_rl.observe.fleet import FleetSnapshot
from hetero_rl.observe.progress import duration, sparkline
from hetero_rl.observe.scaling import ADVICE, ScaleHint, scale_hint
from hetero_rl.observe.tables import (
    backend_table,
    event_line,
    headline,
    queue_table,
    short_number,
    worker_table,
)
from hetero_rl.wire.messages import WorkerState

__all__ = ["FleetHistory", "top_view"]

WINDOW_SECONDS = 60.0
_MOST_SNAPSHOTS = 600


class FleetHistory:
    """What the hub answered within the last minute."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, FleetSnapshot]] = deque(maxlen=_MOST_SNAPSHOTS)

    def add(self, now: float, snapshot: FleetSnapshot) -> None:
        """Takes an answer; `now` is monotonic, in seconds."""
        self._entries.append((now, snapshot))
        while len(self._entries) > 2 and now - self._entries[0][0] > WINDOW_SECONDS:
            self._entries.popleft()

    @property
    def newest(self) -> FleetSnapshot | None:
        """The last answer; None before the first."""
        return self._entries[-1][1] if self._entries else None

    @property
    def rates(self) -> dict[str, float]:
        """Tokens per second by worker over the window; without those that are new or started again in it."""
        if len(self._entries) < 2:
            return {}
        (start, before), (end, newest) = self._entries[0], self._entries[-1]
        known = {(worker.worker_name, worker.worker_epoch): worker for worker in before.workers}
        rates = {}
        for worker in newest.workers:
            old = known.get((worker.worker_name, worker.worker_epoch))
            if old is not None and end > start and worker.generated_tokens >= old.generated_tokens:
                rates[worker.worker_name] = (worker.generated_tokens - old.generated_tokens) / (end - start)
        return rates

    @property
    def token_curve(self) -> list[float]:
        """Tokens per second of the whole fleet, answer by answer."""
        entries = list(self._entries)
        curve = []
        for (start, before), (end, after) in itertools.pairwise(entries):
            made = _tokens(after) - _tokens(before)
            curve.append(max(0.0, made / (end - start)) if end > start else 0.0)
        return curve

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds to the last step, from the steps within the window; None while none was made."""
        if len(self._entries) < 2:
            return None
        (start, before), (end, newest) = self._entries[0], self._entries[-1]
        made = newest.status.step - before.status.step
        if made <= 0:
            return None
        return (newest.status.total_steps - newest.status.step) * (end - start) / made

    @property
    def waits(self) -> list[tuple[ScaleHint, float]]:
        """Share of the answers in which the run waited for each cause, largest first."""
        hints = Counter(scale_hint(entry.status, entry.workers) for _, entry in self._entries)
        return [(hint, count / len(self._entries)) for hint, count in hints.most_common()]


def _tokens(snapshot: FleetSnapshot) -> int:
    return sum(worker.generated_tokens for worker in snapshot.workers)


def top_view(history: FleetHistory, *, title: str, problem: str = "") -> RenderableType:
    """Everything on one screen.

    Args:
        history: What the hub answered.
        title: Whose hub.
        problem: Why the newest answer is old; empty while the hub answers.
    """
    snapshot = history.newest
    if snapshot is None:
        return Panel(Text(problem or "asking the hub ...", style="yellow"), title=title, title_align="left")
    shown = [worker for worker in snapshot.workers if worker.state is not WorkerState.LEFT]
    rates = history.rates
    parts: list[RenderableType] = [headline(snapshot.status), _progress(history, snapshot), Text()]
    parts += [_waits(history.waits), _speed(history), Text(), queue_table(snapshot.status), Text()]
    parts += [worker_table(shown, rates), Text()]
    parts += [backend_table(summarize_backends(snapshot.workers, rates)), Text(), _incidents(snapshot)]
    parts += [event_line(event) for event in snapshot.events]
    if problem:
        parts.insert(0, Text(problem, style="bold red"))
    return Panel(Group(*parts), title=title, title_align="left", border_style="blue", padding=(0, 1))


def _progress(history: FleetHistory, snapshot: FleetSnapshot) -> Table:
    status, left = snapshot.status, history.seconds_left
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    row.add_row(
        Text(f"step {status.step}/{status.total_steps}", style="bold"),
        ProgressBar(total=max(1, status.total_steps), completed=status.step, complete_style="green"),
        Text("ETA -" if left is None else f"ETA {duration(left)}"),
    )
    return row


def _waits(waits: Sequence[tuple[ScaleHint, float]]) -> Text:
    parts = [f"{share:.0%} {ADVICE[hint]}" for hint, share in waits[:2]]
    return Text("last minute  " + ";  ".join(parts))


def _speed(history: FleetHistory) -> Text:
    curve = history.token_curve
    if not curve:
        return Text("generated    -")
    return Text.assemble(
        f"generated    {short_number(sum(history.rates.values()))} tok/s  ", (sparkline(curve), "green")
    )


def _incidents(snapshot: FleetSnapshot) -> Text:
    counted = {name: count for name, count in snapshot.status.counters.items() if count}
    if not counted:
        return Text("no incidents", style="dim")
    return Text("incidents  " + "  ".join(f"{name} {count}" for name, count in counted.items()))
