"""A line of a given rate and delay between two ends of this machine: a TCP proxy in a process of its own.

    client ──► reader ── each piece with the time at which it may leave ──► queue ──► writer ──► server
    server ──► reader ───────────────────────────────────────────────────► queue ──► writer ──► client

Each direction passes `rate` bytes per second, as a token bucket says, and every byte `delay` seconds after it passed the
bucket. A queue is bounded by what the line holds, so that the sender is slowed down as by a full line. What the line loses by
waking up late it makes up for, so that a plain connection gets the rate (`plain_line`). Ends with its process.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

__all__ = ["Pace", "begins", "open_line", "serve_paced"]

_PIECE = 16 * 1024
_AT_ONCE = 0.0005
"""Seconds within which bytes come that were there already."""
_NEVER = float("-inf")
"""A connection's first bytes never waited for a line that slept."""
_MOST_LATE = 0.02
"""Seconds of waking up late that the line makes up for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """What the line carries, each way."""

    bytes_per_second: float
    round_trip_seconds: float

    @property
    def delay(self) -> float:
        """Seconds one way."""
        return self.round_trip_seconds / 2

    def bound(self, size: int) -> float:
        """Least seconds in which a request is answered by that many bytes."""
        return size / self.bytes_per_second + self.round_trip_seconds


def serve_paced(target: str, pace: Pace, address_file: Path) -> None:
    """Passes connections on to `target`, host:port; the main function of the line's process."""
    asyncio.run(_serve(target, pace, address_file))


async def _serve(target: str, pace: Pace, address_file: Path) -> None:
    server = await open_line(target, pace)
    scratch = address_file.with_suffix(".tmp")
    scratch.write_text("{}:{}".format(*server.sockets[0].getsockname()), encoding="utf-8")
    scratch.replace(address_file)
    await server.serve_forever()


async def open_line(target: str, pace: Pace) -> asyncio.Server:
    """Listens on a port of its own on loopback, and passes connections on to `target`, host:port."""
    host, _, port = target.rpartition(":")
    # One line: all connections share its rate.
    forth, back = _Direction(pace), _Direction(pace)

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(forth.carry(reader, there_writer), back.carry(there_reader, writer))

    return await asyncio.start_server(passed_on, "127.0.0.1", 0)


def begins(free_at: float, asked: float, came: float) -> float:
    """When bytes begin to pass the bucket. Seconds on one clock.

    Args:
        free_at: When everything before them has passed.
        asked: When the line asked for them, which is late when it woke up late.
        came: When it got them.
    """
    # What was there at once has waited for the line, not the line for it: then the line makes up for its sleep.
    late = _MOST_LATE if came - asked < _AT_ONCE else 0.0
    return max(free_at, came - late)


class _Direction:
    """One way of the line."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._free_at = 0.0
        """When the bucket has passed everything that was handed to it."""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection's bytes until its sender ends."""
        room = int(self._pace.bytes_per_second * self._pace.delay / _PIECE) + 16
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(room)
        await asyncio.gather(_ended(self._take, reader, pieces), self._give(pieces, writer))

    async def _take(self, reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop, asked = asyncio.get_running_loop(), _NEVER
        while piece := await reader.read(_PIECE):
            passed = begins(self._free_at, asked, loop.time()) + len(piece) / self._pace.bytes_per_second
            self._free_at = passed
            await pieces.put((passed + self._pace.delay, piece))
            # The next piece waits until this one is on the line. A wait ends at a whole millisecond, a piece takes 1.3.
            await asyncio.sleep(passed - loop.time())
            asked = loop.time()

    @staticmethod
    async def _give(pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, piece = await pieces.get()
            if not piece:
                break
            await asyncio.sleep(due - loop.time())
            writer.write(piece)
            await writer.drain()
        writer.close()


async def _ended(
    take: Callable[[asyncio.StreamReader, asyncio.Queue[tuple[float, bytes]]], Awaitable[None]],
    reader: asyncio.StreamReader,
    pieces: asyncio.Queue[tuple[float, bytes]],
) -> None:
    """Takes until the sender ends or the connection breaks, and says so to the other side."""
    try:
        await take(reader, pieces)
    except ConnectionError:
        pass  # a broken connection ends like one that was closed
    finally:
        await pieces.put((0.0, b""))
