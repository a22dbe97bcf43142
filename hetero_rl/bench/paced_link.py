"""A line of a given rate and delay between two ends of this machine: a TCP proxy in a process of its own.

    client ──► reader ── each piece with the time at which it may leave ──► queue ──► writer ──► server
    server ──► reader ───────────────────────────────────────────────────► queue ──► writer ──► client

Each direction passes `rate` bytes per second, as a token bucket says, and every byte `delay` seconds after it passed the
bucket. A queue is bounded by what the line holds, so that the sender is slowed down as by a full line. Ends with its process.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

__all__ = ["Pace", "open_line", "serve_paced"]

_PIECE = 16 * 1024


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
        loop = asyncio.get_running_loop()
        while piece := await reader.read(_PIECE):
            self._free_at = max(self._free_at, loop.time()) + len(piece) / self._pace.bytes_per_second
            passed = self._free_at
            await pieces.put((passed + self._pace.delay, piece))
            # The next piece waits until this one is on the line; a wait that is too long is made up for.
            await asyncio.sleep(passed - loop.time())

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
