"""The bad line carries bytes in order, as pieces, and ends within them; it makes up none."""

import asyncio
import random
import socket
from collections import Counter

import pytest

from tests.chaos.bad_proxy import BadProxy, ProxyTerms, cuts

SENT = random.Random(1).randbytes(300_000)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
CALM = ProxyTerms(sliced=1.0, delayed=0.2, longest_delay=0.001, stalled=0.0, bytes_to_reset=0)


async def through(terms, seed):
    """What comes back from an echo behind a proxy, and what the proxy counted."""
    ports = asyncio.get_running_loop().create_future()
    echo = await asyncio.start_server(repeat, "127.0.0.1", 0)
    proxy = BadProxy(f"127.0.0.1:{echo.sockets[0].getsockname()[1]}", seed, terms)
    serving = asyncio.create_task(proxy.serve("127.0.0.1", 0, ports.set_result))
    reader, writer = await asyncio.open_connection("127.0.0.1", await ports)
    writing = asyncio.create_task(write(writer))
    came = bytearray()
    try:
        while len(came) < len(SENT) and (piece := await reader.read(2**16)):
            came += piece
    except ConnectionError:
        proxy.done["heard"] += 1
    for task in (writing, serving):
        task.cancel()
    await asyncio.gather(writing, serving, return_exceptions=True)
    writer.transport.abort()
    echo.close()
    return bytes(came), proxy.done


async def repeat(reader, writer):
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


async def write(writer):
    writer.write(SENT)
    await writer.drain()


@pytest.mark.asyncio
async def test_what_is_cut_into_pieces_arrives_whole_and_in_order():
    came, done = await through(CALM, seed=1)
    assert came == SENT
    assert done["pieces"] > 20
    assert done["bytes"] == 2 * len(SENT)
    assert done["resets"] == 0


@pytest.mark.asyncio
async def test_a_reset_leaves_a_beginning_and_both_sides_hear_of_it():
    came, done = await through(ProxyTerms(bytes_to_reset=100_000, stalled=0.0), seed=2)
    assert len(came) < len(SENT)
    assert SENT.startswith(came)
    assert (done["resets"], done["heard"]) == (1, 1)


@pytest.mark.asyncio
async def test_a_dead_upstream_ends_the_connection():
    ports = asyncio.get_running_loop().create_future()
    with socket.socket() as held:  # bound, but not listening: whoever dials it is refused
        held.bind(("127.0.0.1", 0))
        proxy = BadProxy(f"127.0.0.1:{held.getsockname()[1]}", 1, CALM)
        serving = asyncio.create_task(proxy.serve("127.0.0.1", 0, ports.set_result))
        reader, writer = await asyncio.open_connection("127.0.0.1", await ports)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
    writer.transport.abort()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert proxy.done == Counter(connections=1)


def test_cuts_are_inside_and_favour_the_heads_of_messages():
    draw = random.Random(3)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    places = [place for _ in range(200) for place in cuts(5_000, draw)]
    assert all(0 < place < 5_000 for place in places)
    assert sum(place <= 20 for place in places) > len(places) / 3
    assert cuts(1, draw) == []
