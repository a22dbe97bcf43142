"""Where the time of a weight version goes on the receiver. Standard library only."""

import contextlib
import dataclasses
import time
from collections.abc import Generator

__all__ = ["StageSeconds"]


@dataclasses.dataclass(slots=True)
class StageSeconds:
    """Seconds of the stages that a version passes before it is loaded; grows with everything that is measured."""

    decode: float = 0.0
    verify: float = 0.0

    @contextlib.contextmanager
    def decoding(self) -> Generator[None]:
        """Adds what happens inside to `decode`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.decode += time.perf_counter() - started

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Takes what happens inside from `decode`, within which it happens."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.decode -= time.perf_counter() - started

    @contextlib.contextmanager
    def verifying(self) -> Generator[None]:
        """Adds what happens inside to `verify`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.verify += time.perf_counter() - started
