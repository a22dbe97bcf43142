import asyncio

from hetero_rl.hub.handlers.context import HubSettings
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.server import running_hub
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.metrics.hub import hub_readings


def _add_events(context, count):
    for _ in range(count):
        context.event("checkpoint", "one of many")


def shown(readings):
    return {
        (reading.metric.name.removeprefix("hetero_rl_"), *reading.labels): reading.value
        for reading in readings
    }


def test_a_scrape_asks_the_running_hub_and_counts_its_whole_history_once():
    async def story():
        async with running_hub(MemoryStore(), MemoryBlobStore(), HubSettings()) as hub:
            source = hub_readings(hub.core)
            await hub.core.run(_add_events, 1003)  # more than one page
            first = shown(await asyncio.to_thread(source.collect))
            await hub.core.run(_add_events, 2)
            return first, shown(await asyncio.to_thread(source.collect))

    first, second = asyncio.run(story())

    assert (first["hub_journal_writable",], first["hub_trainer_connected",], first["run_step",]) == (1, 0, 0)
    assert first["hub_journal_syncs_total",] >= 1
    assert second["hub_journal_sync_seconds_total",] > first["hub_journal_sync_seconds_total",] > 0
    assert first["hub_events_total", "checkpoint"] == 1003
    assert second["hub_events_total", "checkpoint"] == 1005
    assert first["hub_scale_hint", "no_trainer"] == 1
