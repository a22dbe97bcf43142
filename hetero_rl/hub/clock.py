"""Time as the hub sees it, injected so that a test can move it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where handlers get the time from."""

    def monotonic(self) -> float:
        """Seconds that never go back: leases and liveness use nothing else."""

    def wall(self) -> float:
        """Seconds since the epoch, for people."""


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
