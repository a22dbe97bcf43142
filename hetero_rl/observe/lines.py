"""One line per step, for logs and pipes."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self, TextIO

from hetero_rl.observe import names
from hetero_rl.observe.progress import RunProgress, duration
from hetero_rl.wire.ports import FleetPort

__all__ = ["LineView", "step_line"]

PHASE_SECONDS = 5.0


def step_line(progress: RunProgress) -> str:
    """The newest step as one line; a metric that was not written is left out."""

    def shown(template: str, *metrics: str) -> list[str]:
        values = [progress.metric(metric) for metric in metrics]
        return [] if None in values else [template.format(*values)]

    parts = [
        f"step {progress.step}/{progress.total_steps}",
        *shown("reward {:.3f}", names.REWARD),
        *shown("lag {:.2f} max {:.0f}", names.LAG_MEAN, names.LAG_MAX),
        *shown("|log mu - log pi| {:.2e}", names.GAP_MEAN),
        *shown("ESS {:.2f}", names.ESS),
        *shown("generated {:.0f} tok/s", names.GENERATED_RATE),
        *shown("trained {:.0f} tok/s", names.TRAINED_RATE),
        *(f"waited for {cause} {share:.0%}" for cause, share in list(progress.waits.items())[:1]),
    ]
    if progress.seconds_left is not None:
        parts.append(f"ETA {duration(progress.seconds_left)}")
    return "  ".join(parts)


class LineView:
    """A sink that prints; safe to call from several threads.

    Args:
        total_steps: Steps of the whole run.
        file: Where to print; None is standard output.
        now: A monotonic clock in seconds.
    """

    def __init__(
        self, total_steps: int, file: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = RunProgress(total_steps)
        self._file = file or sys.stdout
        self._lock = threading.Lock()
        self._now = now
        self._phase = ""
        self._phase_printed_at = 0.0

    def __enter__(self) -> Self:
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
            self._progress.observe(step, metrics)
            if names.REWARD in metrics:
                self._print(step_line(self._progress))
            if names.ACCURACY in metrics:
                newest = self._progress.evaluations[-1]
                self._print(f"held-out accuracy {newest.accuracy:.3f} after step {newest.step}")

    def phase(self, text: str) -> None:
        """Takes what is being done before the first step; news of the same phase are printed now and then."""
        name, now = text.partition(":")[0], self._now()
        with self._lock:
            if name != self._phase or now - self._phase_printed_at >= PHASE_SECONDS:
                self._phase, self._phase_printed_at = name, now
                self._print(text)

    def notify(self, text: str) -> None:
        """Takes a sentence for people."""
        with self._lock:
            self._print(text)

    def watch(self, fleet: FleetPort) -> None:
        """Lines have no room for workers; `hetero-rl status` shows them."""

    def close(self) -> None:
        """Nothing to give back."""

    def _print(self, text: str) -> None:
        print(text, file=self._file, flush=True)
