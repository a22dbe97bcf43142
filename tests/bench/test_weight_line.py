"""The paced line, and what is computed from what went over it."""

import asyncio
import time

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")
pytest.importorskip("zstandard", reason="the bench extra is not installed")

from hetero_rl.bench.paced_link import Pace, open_line
from hetero_rl.bench.weight_bulk import bulk_figures
from hetero_rl.bench.weight_link import Sync, link_figures, sync_figures
from hetero_rl.bench.weight_updates import Update

PATIENCE = 90.0


def test_the_bound_is_the_time_of_the_bytes_and_a_round_trip():
    pace = Pace(bytes_per_second=12.5e6, round_trip_seconds=0.05)
    assert pace.bound(5_000_000) == pytest.approx(0.45)
    assert pace.delay == 0.025


async def echo(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.asyncio
async def test_bytes_come_back_as_they_were_and_no_sooner_than_the_pace_allows():
    pace = Pace(bytes_per_second=1e6, round_trip_seconds=0.02)
    data = np.random.default_rng(0).bytes(100_000)
    async with (
        asyncio.timeout(PATIENCE),
        await asyncio.start_server(echo, "127.0.0.1", 0) as server,
        await open_line("{}:{}".format(*server.sockets[0].getsockname()), pace) as line,
    ):
        started = time.monotonic()
        reader, writer = await asyncio.open_connection(*line.sockets[0].getsockname())
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data
        # The echo begins with the first bytes, so both ways overlap; nothing is faster than one way and a round trip.
        assert time.monotonic() - started >= pace.bound(len(data)) - 0.001
        writer.close()


def test_figures_are_ratios_of_the_syncs():
    update = Update("u", ((np.zeros(4, np.uint16), np.array([1, 0, 0, 0], np.uint16)),))
    # 1,250,000 bytes take 0.1 s and the round trip 0.05 s.
    syncs = [Sync(1_250_000, wall=0.3, fetch=0.25, pause=0.03)]
    figures = {figure.name: figure for figure in sync_figures(syncs, update)}
    assert figures["sync_wall_over_bound"].value == pytest.approx(2.0)
    assert figures["fetch_wall_over_bound"].value == pytest.approx(0.25 / 0.15)
    assert figures["goodput_over_pace"].value == pytest.approx(0.5)
    assert figures["pause_share"].value == pytest.approx(0.1)
    assert [figure.met for figure in figures.values()] == [False, None, False, False]


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_a_version_goes_over_the_line_and_bytes_in_bulk_come():
    old = np.random.default_rng(0).integers(0x3C00, 0x3C80, 20_000, np.uint16)
    update = Update("u", ((old, old + (np.arange(old.size) % 50 == 0).astype(np.uint16)),))
    names = [figure.name for figure in link_figures(update, quick=True)]
    assert names == ["sync_wall_over_bound", "fetch_wall_over_bound", "goodput_over_pace", "pause_share"]
    bulk = {figure.name: figure.value for figure in bulk_figures(quick=True)}
    assert bulk["cpu_seconds_per_gb"] > 0
