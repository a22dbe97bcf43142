"""Keeps requests and weight updates apart.

    decode, score ──► open? ──► counted while they run ──► done
                        ▲
    update ── closes ───┘ waits until no score runs (and, draining, no completion) ──► loads ──► opens

Completions may be on their way while weights change, scores may not: what they report is one number for one version.
Everything happens on the event loop; updates wait for each other.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Turnstile"]


class Turnstile:
    """Open, unless weights are being replaced."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._inside: Counter[str] = Counter()
        self._left = asyncio.Condition()
        self._updates = asyncio.Lock()

    @asynccontextmanager
    async def passed(self, kind: str) -> AsyncGenerator[None]:
        """Waits until requests may be sent, and counts one of that kind, "decode" or "score", as inside."""
        await self._open.wait()
        self._inside[kind] += 1
        try:
            yield
        finally:
            self._inside[kind] -= 1
            if not self._inside[kind]:
                await self._say_left()

    @asynccontextmanager
    async def closed(self, *, drain: bool) -> AsyncGenerator[None]:
        """Lets nothing new in, waits for scores, and for completions when draining; opens again at the end."""
        async with self._updates:
            self._open.clear()
            try:
                async with self._left:
                    await self._left.wait_for(
                        lambda: not self._inside["score"] and not (drain and self._inside["decode"])
                    )
                yield
            finally:
                self._open.set()

    async def _say_left(self) -> None:
        async with self._left:
            self._left.notify_all()
