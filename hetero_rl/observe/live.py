"""The live view of a run on a terminal.

    trainer thread ── write(metrics) ──┐
    supervisor ────── notify(text) ────┼──► state, under one lock ──► painter thread of rich, 4 times a second
    fleet thread ──── hub, every second┘

close() paints a last time and leaves the picture on the screen. The fleet thread ends with close(); a hub that does not
answer leaves its last word in the worker table.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hetero_rl.errors import ProtocolError
from hetero_rl.observe import names
from hetero_rl.observe.fleet import FleetSnapshot, fetch_fleet
from hetero_rl.observe.progress import RunProgress, duration, sparkline
from hetero_rl.observe.tables import short_number, worker_table
from hetero_rl.wire.ports import FleetPort

__all__ = ["LiveView", "run_panel"]

NOTICES = 8
POLL_SECONDS = 1.0
JOIN_SECONDS = 2.0
REPAINTS_PER_SECOND = 4


def run_panel(
    title: str,
    progress: RunProgress,
    *,
    elapsed: float,
    phase: str = "",
    fleet: FleetSnapshot | None = None,
    notices: tuple[str, ...] = (),
) -> RenderableType:
    """Everything that is known of a run as one panel.

    Args:
        title: What is being trained.
        progress: The training itself.
        elapsed: Seconds since the view was opened.
        phase: What is being done before the first step; empty from then on.
        fleet: The hub's view; None before the first answer.
        notices: Sentences for people, oldest first.
    """
    parts: list[RenderableType] = [_bar(progress, elapsed), Text()]
    parts.append(Text(f"{phase} ...", style="bold") if phase else _metrics(progress))
    if fleet is not None:
        parts += [Text(), worker_table(fleet.workers)]
    if notices:
        parts += [Text(), *(Text(notice, style="yellow", overflow="fold") for notice in notices)]
    return Panel(Group(*parts), title=title, title_align="left", border_style="blue", padding=(0, 1))


def _bar(progress: RunProgress, elapsed: float) -> Table:
    left = progress.seconds_left
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    row.add_row(
        Text(f"step {progress.step}/{progress.total_steps}", style="bold"),
        ProgressBar(total=progress.total_steps, completed=progress.step, complete_style="green"),
        Text(f"{duration(elapsed)} so far  " + ("ETA -" if left is None else f"ETA {duration(left)}")),
    )
    return row


def _metrics(progress: RunProgress) -> Table:
    grid = Table.grid(padding=(0, 3))
    for _ in range(2):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True)
    grid.add_row("reward", _reward(progress), "held-out accuracy", _accuracy(progress))
    grid.add_row(
        "lag (steps)",
        _pair(progress, "{:.2f} mean  {:.0f} max", names.LAG_MEAN, names.LAG_MAX),
        "|log μ - log π|",
        _pair(progress, "{:.2e} mean  {:.2e} max", names.GAP_MEAN, names.GAP_MAX),
    )
    grid.add_row(
        "generated",
        _rate(progress, names.GENERATED_RATE),
        "effective sample size",
        _pair(progress, "{:.0%} of the batch", names.ESS),
    )
    grid.add_row("trained", _rate(progress, names.TRAINED_RATE), "trainer waits for", _waits(progress))
    return grid


def _reward(progress: RunProgress) -> Text:
    newest = progress.metric(names.REWARD)
    if newest is None:
        return Text("-")
    return Text.assemble((f"{newest:.3f}", "bold"), "  ", (sparkline(progress.rewards, 24), "green"))


def _accuracy(progress: RunProgress) -> Text:
    if not progress.evaluations:
        return Text("-")
    first, newest = progress.evaluations[0], progress.evaluations[-1]
    if len(progress.evaluations) == 1:
        return Text(f"{first.accuracy:.3f} at step {first.step}", style="bold")
    return Text.assemble(
        f"{first.accuracy:.3f} → ", (f"{newest.accuracy:.3f}", "bold green"), f" at step {newest.step}"
    )


def _pair(progress: RunProgress, template: str, *metrics: str) -> str:
    values = [progress.metric(metric) for metric in metrics]
    return "-" if None in values else template.format(*values)


def _rate(progress: RunProgress, metric: str) -> str:
    value = progress.metric(metric)
    return "-" if value is None else f"{short_number(value)} tok/s"


def _waits(progress: RunProgress) -> str:
    shares = progress.waits
    return "  ".join(f"{cause} {share:.0%}" for cause, share in list(shares.items())[:3]) or "nothing"


class LiveView:
    """A sink that paints; a context manager.

    Args:
        title: What is being trained.
        total_steps: Steps of the whole run.
        console: Where to paint; None is standard output.
    """

    def __init__(self, title: str, total_steps: int, console: Console | None = None) -> None:
        self._title = title
        self._progress = RunProgress(total_steps)
        self._started = time.monotonic()
        self._phase = "starting"
        self._notices: deque[str] = deque(maxlen=NOTICES)
        self._fleet: FleetSnapshot | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._poller: threading.Thread | None = None
        self._live = Live(
            get_renderable=self._render,
            console=console or Console(),
            refresh_per_second=REPAINTS_PER_SECOND,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, step: int) -> None:
        """Takes the step that training goes on from."""
        with self._lock:
            self._progress.step = step

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a step."""
        with self._lock:
            self._phase = ""
            self._progress.observe(step, metrics)

    def phase(self, text: str) -> None:
        """Takes what is being done before the first step; each phase replaces the one before."""
        with self._lock:
            self._phase = text

    def notify(self, text: str) -> None:
        """Takes a sentence for people."""
        with self._lock:
            self._notices.append(text)

    def watch(self, fleet: FleetPort) -> None:
        """Begins to show the workers that a hub knows."""
        self._poller = threading.Thread(target=self._poll, args=(fleet,), name="fleet", daemon=True)
        self._poller.start()

    def close(self) -> None:
        """Paints a last time and gives the terminal back; safe to call twice."""
        self._closing.set()
        if self._poller is not None:
            self._poller.join(JOIN_SECONDS)  # it may wait for a hub that is gone
        self._live.stop()

    def _poll(self, fleet: FleetPort) -> None:
        while not self._closing.is_set():
            # A hub that is away may come back; at the end of a run it is gone, and its last word stays in the picture.
            with contextlib.suppress(ProtocolError):
                snapshot = fetch_fleet(fleet, after=self._fleet)
                with self._lock:
                    self._fleet = snapshot
            self._closing.wait(POLL_SECONDS)

    def _render(self) -> RenderableType:
        with self._lock:
            return run_panel(
                self._title,
                self._progress,
                elapsed=time.monotonic() - self._started,
                phase=self._phase,
                fleet=self._fleet,
                notices=tuple(self._notices),
            )
