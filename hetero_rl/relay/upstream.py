"""The hub as a relay sees it: one question at a time for what many workers ask.

    watcher (a task) ── AwaitVersion ──► hub        workers ── await_version ──► wait for the watcher's news
    workers ── get_plan ──► same question under way or just answered? ── yes ──► that answer
                                        └─ no ──► hub

An answer counts for a few seconds and until the next version. When the hub does not answer the watcher, workers that wait
are told so and turn to the hub themselves. Shutdown: `close` cancels the watcher and questions under way.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from hetero_rl.errors import HeteroRLError, UnreachableError
from hetero_rl.wire.messages import WeightEncoding, WeightManifest
from hetero_rl.wire.ports import WeightPort

__all__ = ["Upstream"]

_logger = logging.getLogger(__name__)

_WATCH_SECONDS = 20.0
_ANSWER_SECONDS = 3.0
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0

_Question = tuple[int, int, tuple[WeightEncoding, ...], int]


class Upstream:
    """Shares questions to a hub among the workers of a site.

    Args:
        port: The hub.
        answer_seconds: How long a plan counts for the next who asks the same.
    """

    def __init__(self, port: WeightPort, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._port = port
        self._answer_seconds = answer_seconds
        self._latest = 0
        self._failure: HeteroRLError | None = None
        self._changed = asyncio.Condition()
        self._plans: dict[_Question, tuple[float, asyncio.Task[tuple[WeightManifest, ...]]]] = {}
        self._watcher = asyncio.create_task(self._watch(), name="relay watcher")

    async def close(self) -> None:
        """Ends everything that is under way."""
        tasks = [self._watcher, *(task for _, task in self._plans.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def await_version(self, after_version: int, wait: float) -> int:
        """The hub's latest version, as soon as it is above the given one or the wait is over.

        Raises:
            UnreachableError: The hub does not answer the relay.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait), self._changed:
                await self._changed.wait_for(
                    lambda: self._latest > after_version or self._failure is not None
                )
        if self._latest <= after_version and self._failure is not None:
            raise UnreachableError(f"the hub does not answer the relay: {self._failure}")
        return self._latest

    async def get_plan(
        self, held_version: int, wanted_version: int, encodings: Sequence[WeightEncoding]
    ) -> tuple[WeightManifest, ...]:
        """The hub's answer; workers in the same position share one. Raises what the hub refused with."""
        question = (held_version, wanted_version, tuple(sorted(set(encodings))), self._latest)
        now = time.monotonic()
        self._plans = {
            known: (at, task) for known, (at, task) in self._plans.items() if not self._is_old(at, task, now)
        }
        if question not in self._plans:
            asking = self._port.get_plan(
                held_version=held_version, wanted_version=wanted_version, encodings=encodings
            )
            task = asyncio.ensure_future(asking)
            task.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # nobody may be left to see it
            self._plans[question] = (now, task)
        # The others must get their answer when the first one to ask goes away.
        return await asyncio.shield(self._plans[question][1])

    def _is_old(self, at: float, task: "asyncio.Task[tuple[WeightManifest, ...]]", now: float) -> bool:
        if not task.done():
            return False
        return task.cancelled() or task.exception() is not None or now - at > self._answer_seconds

    async def _watch(self) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                latest = await self._port.await_version(self._latest, _WATCH_SECONDS)
            except HeteroRLError as error:
                if self._failure is None:
                    _logger.warning("the hub does not answer: %s", error)
                await self._tell(self._latest, error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)
            else:
                delay = _FIRST_DELAY
                await self._tell(latest, None)

    async def _tell(self, latest: int, failure: HeteroRLError | None) -> None:
        async with self._changed:
            if latest != self._latest:
                _logger.info("the latest weight version is %d", latest)
            self._latest, self._failure = latest, failure
            self._changed.notify_all()
