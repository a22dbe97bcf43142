"""Seconds that the device waited, by cause.

Threads record when they are busy with what; the main thread records when it waited. A wait is given to the cause that
was under way at the time, in this order: grading the batch; weights, while the newest version was still on its way to
the hub, so that workers could not have it; else data.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Generator

__all__ = ["CAUSES", "WaitClock"]

CAUSES = ("data", "grading", "weights", "publish", "checkpoint", "evaluation")


class WaitClock:
    """Intervals of work and of waiting. Safe to use from several threads.

    Args:
        now: A monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._busy: dict[str, list[tuple[float, float]]] = {}
        self._running: dict[str, float] = {}
        self._waited: dict[str, float] = dict.fromkeys(CAUSES, 0.0)

    @contextlib.contextmanager
    def busy(self, work: str) -> Generator[None]:
        """Records that a thread works on something, "grading" or "weights", one at a time for each."""
        with self._lock:
            self._running[work] = self._now()
        try:
            yield
        finally:
            with self._lock:
                self._busy.setdefault(work, []).append((self._running.pop(work), self._now()))

    @contextlib.contextmanager
    def waiting(self, cause: str) -> Generator[None]:
        """Records that the main thread waits for one known cause."""
        started = self._now()
        try:
            yield
        finally:
            with self._lock:
                self._waited[cause] += self._now() - started

    @contextlib.contextmanager
    def waiting_for_batch(self) -> Generator[None]:
        """Records that the main thread waits for a batch; the cause is found from what was under way."""
        started = self._now()
        try:
            yield
        finally:
            with self._lock:
                ended = self._now()
                grading = self._overlap("grading", started, ended)
                weights = min(self._overlap("weights", started, ended), ended - started - grading)
                self._waited["grading"] += grading
                self._waited["weights"] += weights
                self._waited["data"] += ended - started - grading - weights

    def take(self) -> dict[str, float]:
        """Seconds waited by cause since the last call."""
        with self._lock:
            waited, self._waited = self._waited, dict.fromkeys(CAUSES, 0.0)
            self._busy.clear()
            return waited

    def _overlap(self, work: str, started: float, ended: float) -> float:
        intervals = list(self._busy.get(work, ()))
        if work in self._running:
            intervals.append((self._running[work], ended))
        return sum(max(0.0, min(ended, end) - max(started, start)) for start, end in intervals)
