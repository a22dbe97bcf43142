"""When a call is made again and when that is given up. Ports never retry; this is where a worker decides.

A call is repeated while the hub does not answer or says that it cannot serve now. Waits grow and are drawn at random
(full jitter), so that workers that lost a hub together do not come back together. Silence of all calls for longer than
the patience ends the worker with a clear error.
"""

import dataclasses
import random
import time

from hetero_rl.errors import HeteroRLError, RefusedError, UnreachableError

__all__ = ["Backoff", "Contact", "Pacing", "may_pass"]

_PASSING_REASONS = frozenset(
    {"RUN_NOT_OPEN", "SHUTTING_DOWN", "STORAGE_FULL", "STORAGE_FAILED", "NO_CREDIT", "DIGEST_MISMATCH"}
)


def may_pass(error: HeteroRLError) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, RefusedError):
        return error.reason in _PASSING_REASONS
    return isinstance(error, UnreachableError)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Durations of a worker's loops, in seconds."""

    first_delay: float = 0.2
    longest_delay: float = 20.0
    patience: float = 600.0
    """Silence of the hub after which the worker gives up."""
    lease_wait: float = 2.0
    """How long one question for work waits at the hub."""
    version_wait: float = 10.0
    """How long one question for a new weight version waits at the hub."""
    look_again: float = 0.02
    """Pause before looking again whether a full engine has room."""
    drain: float = 20.0
    """Time for running completions to end when the worker is asked to stop."""
    flush: float = 10.0
    """Time for finished results to reach the hub after that."""
    engine_restarts: int = 3
    """Times that a dead engine is started again."""


class Backoff:
    """Delays between repeats: uniform between 0 and a bound that doubles."""

    def __init__(
        self, pacing: Pacing, draw: random.Random | None = None, *, longest_delay: float | None = None
    ) -> None:
        self._longest = min(pacing.longest_delay, longest_delay or pacing.longest_delay)
        self._bound = min(pacing.first_delay, self._longest)
        self._draw = draw or random.SystemRandom()

    def next_delay(self) -> float:
        """Seconds to wait before the next repeat."""
        delay = self._draw.uniform(0, self._bound)
        self._bound = min(2 * self._bound, self._longest)
        return delay


class Contact:
    """When the hub was last heard, by any call."""

    def __init__(self) -> None:
        self._heard = time.monotonic()

    def note(self) -> None:
        """The hub answered, be it with a refusal."""
        self._heard = time.monotonic()

    def check(self, patience: float, error: HeteroRLError) -> None:
        """Raises UnreachableError when the hub has been silent for longer than `patience` seconds."""
        silence = time.monotonic() - self._heard
        if silence > patience:
            raise UnreachableError(
                f"the hub has not answered for {silence:.0f} s, longer than {patience:g} s; this worker gives up. "
                f"Last error: {error}"
            ) from error
