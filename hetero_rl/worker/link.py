"""The worker's side of the conversation with the hub: repeats what may pass, joins again when the hub has forgotten it.

loops ──► Link.call ──► port ──► hub
             │  unreachable, or cannot serve now: wait, again (until the patience ends)
             └─ "never joined": join under the same boot id, again
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hetero_rl.errors import HeteroRLError, RefusedError, UnreachableError
from hetero_rl.wire.messages import JoinGrant, JoinRequest, WorkerIdentity
from hetero_rl.wire.ports import RolloutPort
from hetero_rl.worker.resend import Backoff, Contact, Pacing, may_pass

__all__ = ["Link"]

T = TypeVar("T")

_JOINS_PER_CALL = 3

_logger = logging.getLogger(__name__)


class Link:
    """Calls that outlive a hub's restart.

    Args:
        port: The hub.
        pacing: How often and how long calls are repeated.
    """

    def __init__(self, port: RolloutPort, pacing: Pacing) -> None:
        self.port = port
        self.contact = Contact()
        self._pacing = pacing
        self._request: JoinRequest | None = None
        self._grant: JoinGrant | None = None
        self._joins = 0
        self._joining = asyncio.Lock()
        self._answered = asyncio.Event()  # set and replaced at every answer

    @property
    def identity(self) -> WorkerIdentity:
        """Who this worker is since it joined."""
        if self._request is None:
            raise AssertionError("the worker has not joined yet")
        return WorkerIdentity(self._request.worker_name, self.grant.worker_epoch)

    @property
    def grant(self) -> JoinGrant:
        """What the hub answered to the last join."""
        if self._grant is None:
            raise AssertionError("the worker has not joined yet")
        return self._grant

    async def join(self, request: JoinRequest) -> JoinGrant:
        """Makes the worker known.

        Raises:
            RefusedError: The hub does not take it, for a reason that stays.
            FencedError: Another process has taken the name.
        """
        self._request = request
        self._grant = await self.repeat("join", lambda: self.port.join(request))
        self._joins += 1
        return self._grant

    async def call(
        self,
        what: str,
        attempt: Callable[[WorkerIdentity], Awaitable[T]],
        *,
        longest_delay: float | None = None,
    ) -> T:
        """Makes a call in the worker's name until it is answered.

        Args:
            what: The call, for the log.
            attempt: Makes it once.
            longest_delay: Most seconds before a repeat, if less than the pacing's.

        Raises:
            RefusedError: The hub said no, for a reason that stays.
            FencedError: Another process has taken the name.
            UnreachableError: The hub was silent for longer than the patience.
        """
        for _ in range(_JOINS_PER_CALL):
            joins = self._joins
            try:
                return await self.repeat(what, lambda: attempt(self.identity), longest_delay=longest_delay)
            except RefusedError as error:
                if error.reason != "NOT_FOUND":
                    raise
                await self._join_again(joins, error)
        return await self.repeat(what, lambda: attempt(self.identity), longest_delay=longest_delay)

    async def repeat(
        self, what: str, attempt: Callable[[], Awaitable[T]], *, longest_delay: float | None = None
    ) -> T:
        """Makes a call until it is answered; arguments and errors like those of `call`."""
        backoff = Backoff(self._pacing, longest_delay=longest_delay)
        while True:
            try:
                answer = await attempt()
            except HeteroRLError as error:
                if isinstance(error, RefusedError):
                    self.contact.note()
                if not may_pass(error):
                    raise
                self.contact.check(self._pacing.patience, error)
                delay = backoff.next_delay()
                # A hub that says "not now" is in order; one that says nothing is not.
                level = logging.INFO if isinstance(error, RefusedError) else logging.WARNING
                _logger.log(level, "%s failed, again in %.1f s: %s", what, delay, error)
                await self._pause(delay, error)
            else:
                self._note_answer()
                return answer

    def _note_answer(self) -> None:
        self.contact.note()
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()

    async def _pause(self, delay: float, error: HeteroRLError) -> None:
        """Waits before a repeat; when another call reaches a hub that was gone, the wait is over."""
        if isinstance(error, UnreachableError):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._answered.wait()
        else:
            await asyncio.sleep(delay)

    async def _join_again(self, joins: int, cause: RefusedError) -> None:
        async with self._joining:
            if self._joins != joins:
                return  # another call has joined again meanwhile
            _logger.warning("the hub does not know this worker any more, joining again: %s", cause)
            if self._request is not None:
                await self.join(self._request)
