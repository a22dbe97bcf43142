import asyncio
import threading
from types import SimpleNamespace

import pytest

from hetero_rl.errors import RefusedError
from hetero_rl.metrics.relay import RelayReadings
from hetero_rl.metrics.worker import WorkerReadings
from hetero_rl.wire.messages import WeightSync
from hetero_rl.worker.session import Session


def sync(**fields):
    cost = {
        "weight_version": 2,
        "from_version": 1,
        "manifests": 1,
        "fetched_bytes": 1000,
        "fetch_seconds": 1.0,
        "decode_seconds": 0.5,
        "verify_seconds": 0.25,
        "pause_seconds": 0.125,
        "total_seconds": 2.0,
    }
    return WeightSync(**{**cost, **fields})


def new_session():
    engine = SimpleNamespace(
        unfinished_sequences=6,
        capabilities=lambda: SimpleNamespace(max_concurrent_sequences=8),
        numerics=lambda: SimpleNamespace(numerics_id="n"),
    )
    keeper = SimpleNamespace(engine=engine, generated_tokens=640, busy_seconds=2.5, restarts=1)
    return Session(None, None, keeper, None, None)


def values(readings):
    return {
        (reading.metric.name.removeprefix("hetero_rl_worker_"), *reading.labels): reading.value
        for reading in readings
    }


def scraped(source):
    """What another thread than the loop's gets."""
    return asyncio.to_thread(source.collect)


async def collected(session):
    return values(await scraped(WorkerReadings(session)))


def test_a_scrape_shows_what_the_worker_has_done():
    async def story():
        session = new_session()
        session.tally.note_sync(sync())
        session.tally.note_sync(sync(fetched_bytes=24, fallbacks=1, relay_bypasses=3))
        session.gate.open(2)
        return await collected(session)

    shown = asyncio.run(story())

    assert (shown["generated_tokens_total",], shown["busy_seconds_total",]) == (640, 2.5)
    assert (shown["unfinished_sequences",], shown["max_concurrent_sequences",], shown["credits",]) == (
        6,
        8,
        2,
    )
    assert (shown["weight_syncs_total",], shown["weight_fetched_bytes_total",]) == (2, 1024)
    assert shown["weight_sync_seconds_total", "fetch"] == 2.0
    assert shown["weight_sync_seconds_total", "pause"] == 0.25
    assert (shown["weight_fallbacks_total",], shown["relay_bypasses_total",]) == (1, 3)
    assert shown["engine_restarts_total",] == 1
    assert (shown["weight_version",], shown["gate_open",], shown["quarantined",]) == (2, 1, 0)


def test_quarantine_shows():
    async def story():
        session = new_session()
        session.gate.open(2)
        session.gate.quarantine()
        return await collected(session)

    shown = asyncio.run(story())
    assert (shown["gate_open",], shown["quarantined",]) == (0, 1)


def test_a_scrape_after_the_end_is_refused_and_does_not_wait():
    async def make():
        await asyncio.sleep(0)
        return WorkerReadings(new_session())

    source = asyncio.run(make())
    refused = []

    def scrape():
        try:
            source.collect()
        except RefusedError as error:
            refused.append(error.reason)

    thread = threading.Thread(target=scrape)
    thread.start()
    thread.join(timeout=90)
    assert refused == ["SHUTTING_DOWN"]


def test_a_relay_shows_what_crossed_the_line():
    shown = {
        reading.metric.name: reading.value
        for reading in RelayReadings(SimpleNamespace(fetched_bytes=10, kept_bytes=7)).collect()
    }
    assert shown == {"hetero_rl_relay_fetched_bytes_total": 10, "hetero_rl_relay_kept_bytes": 7}


def test_a_reading_has_a_value_for_each_label():
    from hetero_rl.metrics.catalogue import CATALOGUE

    with pytest.raises(ValueError, match="phase"):
        CATALOGUE["hetero_rl_worker_weight_sync_seconds_total"](1.0)
