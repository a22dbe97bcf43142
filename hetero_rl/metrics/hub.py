"""What the hub process exports: its own core is asked, on its own event loop."""

import asyncio

from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.fleet import list_events, list_workers, run_status
from hetero_rl.metrics.exporter import on_loop
from hetero_rl.metrics.fleet import EVENT_PAGE, FleetReadings, FleetState
from hetero_rl.wire.messages import Event

__all__ = ["hub_readings"]


def hub_readings(core: HubCore) -> FleetReadings:
    """A source over the core; call it on the core's event loop."""
    loop = asyncio.get_running_loop()
    return FleetReadings(lambda after: on_loop(loop, lambda: _state(core, after)))


async def _state(core: HubCore, after_sequence: int) -> FleetState:
    events: list[Event] = []
    while page := await core.run(list_events, events[-1].sequence if events else after_sequence, EVENT_PAGE):
        events += page
        if len(page) < EVENT_PAGE:
            break
    return FleetState(
        status=await core.run(run_status),
        workers=await core.run(list_workers, include_gone=True),
        events=tuple(events),
        writable=core.writable,
        syncs=core.syncs,
    )
