"""Weights by way of the site's relay, or from the hub itself while the relay is of no use.

ask the relay ── answers ──► done
      └── dead, full, broken or unknown with it: counted once ──► ask the hub; the relay again after a while
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from hetero_rl.errors import HeteroRLError, InvalidMessageError, RefusedError, UnreachableError
from hetero_rl.wire.messages import WeightEncoding, WeightManifest
from hetero_rl.wire.ports import WeightPort

__all__ = ["RelayedWeights"]

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# The relay's own trouble. What else a relay refuses with is the hub's word, which the hub would only repeat.
_RELAY_TROUBLE = frozenset(
    {
        "DIGEST_MISMATCH", "STORAGE_FULL", "STORAGE_FAILED", "SHUTTING_DOWN", "NOT_AUTHORIZED", "INCOMPATIBLE",
    }
)  # fmt: skip


class RelayedWeights(WeightPort):
    """`WeightPort` over a relay with the hub behind it.

    Args:
        relay: Asked first.
        hub: Asked while the relay is bypassed.
        rest: Seconds until a relay that failed is asked again.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        relay: WeightPort,
        hub: WeightPort,
        rest: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay = relay
        self._hub = hub
        self._rest = rest
        self._clock = clock
        self._bypassed_until = float("-inf")
        self.bypasses = 0
        """How often the relay was given up for a while."""

    async def get_plan(
        self, *, held_version: int, wanted_version: int, encodings: Sequence[WeightEncoding]
    ) -> tuple[WeightManifest, ...]:
        """See `WeightPort`."""
        return await self._ask(
            lambda port: port.get_plan(
                held_version=held_version, wanted_version=wanted_version, encodings=encodings
            )
        )

    async def await_version(self, after_version: int, wait: float) -> int:
        """See `WeightPort`."""
        return await self._ask(lambda port: port.await_version(after_version, wait))

    async def fetch_blob(self, digest: str, offset: int) -> AsyncIterator[bytes | memoryview]:
        """See `WeightPort`; goes on from the hub where the relay broke off.

        Raises:
            RefusedError: DIGEST_MISMATCH: the relay had other bytes than the digest says; begin again from 0.
        """
        if self._asks_relay:
            try:
                async for chunk in self._relay.fetch_blob(digest, offset):
                    offset += len(chunk)
                    yield chunk
            except HeteroRLError as error:
                self._note(error)
                if isinstance(error, RefusedError) and error.reason == "DIGEST_MISMATCH":
                    raise
            else:
                return
        async for chunk in self._hub.fetch_blob(digest, offset):
            yield chunk

    @property
    def _asks_relay(self) -> bool:
        return self._clock() >= self._bypassed_until

    async def _ask(self, ask: Callable[[WeightPort], Awaitable[T]]) -> T:
        if self._asks_relay:
            try:
                return await ask(self._relay)
            except HeteroRLError as error:
                self._note(error)
        return await ask(self._hub)

    def _note(self, error: HeteroRLError) -> None:
        """Bypasses the relay for a while when the error is its own; raises what is not."""
        if not _is_relays_own(error):
            raise error
        if self._asks_relay:
            self.bypasses += 1
            _logger.warning("the relay is bypassed for %.0f s: %s", self._rest, error)
        self._bypassed_until = self._clock() + self._rest


def _is_relays_own(error: HeteroRLError) -> bool:
    if isinstance(error, RefusedError):
        return error.reason in _RELAY_TROUBLE
    return isinstance(error, UnreachableError | InvalidMessageError)
