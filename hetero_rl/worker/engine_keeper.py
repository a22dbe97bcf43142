"""Keeps an engine alive: starts it, starts another one when it died, gives up after a stated number of deaths."""

import contextlib
import logging
from collections.abc import Callable

from hetero_rl.errors import EngineError
from hetero_rl.worker.engine import Engine

__all__ = ["EngineKeeper"]

_logger = logging.getLogger(__name__)


class EngineKeeper:
    """The engine that serves now.

    Args:
        build: Makes an engine that is not started yet.
        restarts: Times that a dead engine is replaced.
    """

    def __init__(self, build: Callable[[], Engine], restarts: int) -> None:
        self._build = build
        self._restarts_left = restarts
        self.restarts = 0
        """Engines that died and were replaced."""
        self._tokens_before = 0
        self._seconds_before = 0.0
        self.engine = build()
        self.failure: EngineError | None = None
        """Why the engine is of no use; None while it lives."""

    async def start(self) -> None:
        """Starts the engine; raises EngineError when it cannot."""
        await self.engine.start()

    def report_failure(self, engine: Engine, error: EngineError) -> None:
        """Says that an engine is of no use any more; that of an engine already replaced is ignored."""
        if engine is self.engine and self.failure is None:
            _logger.error("the engine died: %s", error)
            self.failure = error

    async def restart(self) -> None:
        """Replaces the dead engine; it has no weights yet.

        Raises:
            EngineError: It has died too often, or the new one does not start.
        """
        cause = self.failure
        if self._restarts_left < 1:
            raise EngineError(f"the engine died and all its restarts are used up; last: {cause}") from cause
        self._restarts_left -= 1
        self._tokens_before, self._seconds_before = self.generated_tokens, self.busy_seconds
        with contextlib.suppress(EngineError):
            await self.engine.close()
        self.engine = self._build()
        await self.engine.start()
        self.failure = None
        self.restarts += 1
        _logger.warning("the engine runs again; %d restarts left", self._restarts_left)

    @property
    def generated_tokens(self) -> int:
        """Completion tokens of all engines so far."""
        return self._tokens_before + self.engine.generated_tokens

    @property
    def busy_seconds(self) -> float:
        """Seconds that engines were generating."""
        return self._seconds_before + self.engine.busy_seconds
