"""What the views have in common, and the one that fits where output goes."""

import sys
from collections.abc import Mapping
from typing import Protocol, Self

from hetero_rl.observe.lines import LineView
from hetero_rl.observe.live import LiveView
from hetero_rl.wire.ports import FleetPort

__all__ = ["View", "choose_view"]


class View(Protocol):
    """Shows a run to a person; a context manager. Every method may be called from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def begin(self, step: int) -> None:
        """Takes the step that training goes on from."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a step; step 0 is the state before training."""

    def phase(self, text: str) -> None:
        """Takes what is being done before the first step; each phase replaces the one before."""

    def notify(self, text: str) -> None:
        """Takes a sentence for people."""

    def watch(self, fleet: FleetPort) -> None:
        """Begins to show the workers that a hub knows."""

    def close(self) -> None:
        """Ends the view; safe to call twice."""


def choose_view(title: str, total_steps: int, *, live: bool | None) -> View:
    """The live view, or lines.

    Args:
        title: What is being trained.
        total_steps: Steps of the whole run.
        live: Whether to paint; None paints on a terminal.
    """
    if sys.stdout.isatty() if live is None else live:
        return LiveView(title, total_steps)
    return LineView(total_steps)
