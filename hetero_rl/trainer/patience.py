"""Calls to the hub that outlast its restart: repeated under the same identity until they succeed.

Only `UnreachableError` is repeated; a refusal is an answer. Every call of the protocol is safe to repeat. Between
attempts the wait doubles from 0.2 s to 20 s with full jitter, and ends at once when the run is to stop.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hetero_rl.errors import HeteroRLError, UnreachableError

__all__ = ["InterruptedRunError", "Patience", "StopSignal"]

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class InterruptedRunError(HeteroRLError):
    """The run is to stop; what was being waited for is given up."""


class StopSignal:
    """Set when the caller wants the run to stop, or when the run itself ends.

    Args:
        requested: The caller's event; Ctrl-C and SIGTERM set it.
    """

    def __init__(self, requested: threading.Event) -> None:
        self._requested = requested
        self._closing = threading.Event()

    @property
    def requested(self) -> bool:
        """Whether the caller asked to stop."""
        return self._requested.is_set()

    def close(self) -> None:
        """Ends every wait of the run's threads."""
        self._closing.set()

    def check(self) -> None:
        """Raises InterruptedRunError when the run is to stop."""
        if self._requested.is_set() or self._closing.is_set():
            raise InterruptedRunError("the run is to stop")

    def pause(self, seconds: float) -> None:
        """Waits; raises InterruptedRunError as soon as the run is to stop."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self.check()
            self._requested.wait(min(remaining, 0.2))
        self.check()


class Patience:
    """Repeats calls that did not reach the hub.

    Args:
        stop: Ends the waiting between attempts.
        seconds: How long the hub may be away before the last error is raised.
    """

    def __init__(self, stop: StopSignal, seconds: float = 300.0) -> None:
        self._stop = stop
        self._seconds = seconds
        self._random = random.Random()  # ruff: ignore[suspicious-non-cryptographic-random-usage] - jitter, not a secret

    def __call__(self, call: Callable[[], _Result], what: str) -> _Result:
        """Makes a call until the hub answers.

        Args:
            call: Makes the call; runs once per attempt.
            what: What is being done, for the log.

        Raises:
            UnreachableError: The hub stayed away too long.
            InterruptedRunError: The run is to stop.
        """
        started = time.monotonic()
        longest = 0.2
        while True:
            try:
                return call()
            except UnreachableError as error:
                away = time.monotonic() - started
                if away > self._seconds:
                    raise
                _LOG.warning("the hub did not answer while %s (%s); trying again", what, error)
            self._stop.pause(self._random.uniform(0, longest))
            longest = min(2 * longest, 20.0)
