"""A TCP proxy on a bad line: it cuts bytes into small pieces, holds them up, stalls one direction and resets connections.

    client ──► connection ──► request pump ──► hub
                    └──────◄── answer pump ◄──┘      each pump draws its own faults from (seed, connection, direction)

TCP itself neither loses, doubles nor reorders bytes, so nor does this. A connection that is reset ends at a random byte, which is in
the middle of a message as a rule; neither side hears of the other's last bytes. A pump that stalls reads nothing, so what is behind it
comes to a halt as well, while the other direction goes on.

Shutdown: cancelling `serve_proxy` closes the listener and cancels every pump.
"""

import asyncio
import contextlib
import dataclasses
import random
import socket
import struct
from collections import Counter

__all__ = ["BadProxy", "ProxyTerms", "run_proxy"]

_READ_BYTES = 2**16
_FRAME_HEAD = 20  # an HTTP/2 frame has a head of 9 bytes, a gRPC message one of 5: cuts shall hit these
_MOST_CUTS = 24


@dataclasses.dataclass(frozen=True)
class ProxyTerms:
    """How bad the line is. Shares are of what was read at once, up to 64 KiB."""

    sliced: float = 0.3
    """Share that arrives in pieces."""
    delayed: float = 0.1
    """Share that arrives late."""
    longest_delay: float = 0.05
    """Seconds."""
    stalled: float = 0.002
    """Share before which its direction stalls."""
    longest_stall: float = 2.0
    """Seconds."""
    bytes_to_reset: int = 150_000
    """Mean number of bytes, of both directions, after which a connection is reset; 0 resets none."""


class BadProxy:
    """Connections to one address, each with its own faults.

    Args:
        upstream: host:port.
        seed: Repeats the faults, as far as the connections repeat themselves.
        terms: How bad it is.
    """

    def __init__(self, upstream, seed, terms):
        self._upstream = upstream
        self._seed = seed
        self._terms = terms
        self._connections = 0
        self.done = Counter()
        """Connections, bytes, and faults by kind."""

    async def serve(self, host, port, started=lambda port: None):
        """Serves until it is cancelled.

        Args:
            host: To listen on.
            port: To listen on; 0 picks one.
            started: Called with the port once it listens.
        """
        server = await asyncio.start_server(self._accept, host, port)
        started(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def _accept(self, reader, writer):
        self._connections += 1
        number = self._connections
        self.done["connections"] += 1
        host, _, port = self._upstream.rpartition(":")
        try:
            hub = await asyncio.open_connection(host, int(port))
        except OSError:  # it is dead just now
            _reset(writer)
            return
        line = _Line(self._terms, self.done, random.Random(f"{self._seed} {number}"))  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
        try:
            await line.carry((reader, writer), hub)
        finally:
            for side in (writer, hub[1]):
                _reset(side)


class _Line:
    """One connection. Its life ends after a number of bytes, or when either side ends it."""

    def __init__(self, terms, done, draw):
        self.terms = terms
        self.done = done
        self.left = draw.expovariate(1 / terms.bytes_to_reset) if terms.bytes_to_reset else float("inf")
        self.draws = [random.Random(draw.getrandbits(64)) for _ in range(2)]  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose

    async def carry(self, client, hub):
        pumps = [
            asyncio.create_task(self.pump(client[0], hub[1], self.draws[0])),
            asyncio.create_task(self.pump(hub[0], client[1], self.draws[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def pump(self, source, target, draw):
        """Carries bytes until one side ends or the connection's life is over."""
        with contextlib.suppress(OSError):
            while self.left > 0:
                await self.hold_up(draw, self.terms.stalled, self.terms.longest_stall, "stalls")
                data = await source.read(_READ_BYTES)
                if not data:
                    return
                await self.hold_up(draw, self.terms.delayed, self.terms.longest_delay, "delays")
                for piece in self.pieces(data, draw):
                    target.write(piece)
                    await target.drain()
                    await asyncio.sleep(0)  # the event loop sends each by itself
            self.done["resets"] += 1

    async def hold_up(self, draw, share, longest, kind):
        if draw.random() < share:
            self.done[kind] += 1
            await asyncio.sleep(draw.uniform(0.0, longest))

    def pieces(self, data, draw):
        """What is sent of the data, in pieces; less than all of it when the connection is to end within."""
        whole = len(data)
        if self.left < whole:
            data = data[: int(self.left)]
        self.left -= whole
        self.done["bytes"] += len(data)
        places = cuts(len(data), draw) if draw.random() < self.terms.sliced else []
        self.done["pieces"] += len(places) + 1
        return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def cuts(size, draw):
    """Places at which that many bytes are cut: mostly near their beginning."""
    count = min(draw.randint(1, _MOST_CUTS), size - 1)
    near = min(size - 1, _FRAME_HEAD)
    if count < 1:
        return []
    return sorted({draw.randint(1, near if draw.random() < 0.7 else size - 1) for _ in range(count)})


def _reset(writer):
    """Ends a connection with RST: what was not delivered is thrown away."""
    held = writer.get_extra_info("socket")
    if held is not None:
        with contextlib.suppress(OSError):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def run_proxy(address, upstream, seed, terms, history):
    """A proxy as a process, until it is killed; the history counts its faults every second."""
    proxy = BadProxy(upstream, seed, terms)

    async def count():
        before = Counter()
        while True:
            await asyncio.sleep(1)
            if proxy.done != before:
                history.note("proxied", **{kind: proxy.done[kind] - before[kind] for kind in proxy.done})
                before = Counter(proxy.done)

    async def run():
        counting = asyncio.create_task(count())
        host, _, port = address.rpartition(":")
        try:
            await proxy.serve(host, int(port))
        finally:
            counting.cancel()

    asyncio.run(run())
