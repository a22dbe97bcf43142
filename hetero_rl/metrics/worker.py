"""What a worker process exports: read from its session, on its own event loop."""

import asyncio
import dataclasses
from collections.abc import Iterator

from hetero_rl.metrics.catalogue import Reading, declare
from hetero_rl.metrics.exporter import on_loop
from hetero_rl.worker.session import Session

__all__ = ["WorkerReadings", "worker_readings"]

_TOKENS = declare("hetero_rl_worker_generated_tokens_total", "Completion tokens generated.")
_BUSY = declare("hetero_rl_worker_busy_seconds_total", "Seconds in which the engine generated.")
_SEQUENCES = declare("hetero_rl_worker_sequences_total", "Completions handed in.")
_UNFINISHED = declare("hetero_rl_worker_unfinished_sequences", "Completions that the engine works on.")
_CAPACITY = declare(
    "hetero_rl_worker_max_concurrent_sequences", "Completions that the engine works on at most."
)
_LEASES = declare("hetero_rl_worker_leases", "Leases worked on or on their way to the hub.")
_UNSENT = declare("hetero_rl_worker_unsent_submissions", "Submissions that wait for the hub.")
_CREDITS = declare(
    "hetero_rl_worker_credits", "Completions that may be asked for now; 0 while the engine is full."
)
_VERSION = declare("hetero_rl_worker_weight_version", "Weight version that is served.")
_OPEN = declare(
    "hetero_rl_worker_gate_open", "1 while work is done; 0 while weights load or a probe is scored."
)
_QUARANTINED = declare("hetero_rl_worker_quarantined", "1 while the hub does not trust this worker.")
_SYNCS = declare("hetero_rl_worker_weight_syncs_total", "Weight versions loaded.")
_SYNC_SECONDS = declare(
    "hetero_rl_worker_weight_sync_seconds_total", "Seconds that new weights took, by phase.", ["phase"]
)
_SYNC_BYTES = declare("hetero_rl_worker_weight_fetched_bytes_total", "Bytes of weights that were fetched.")
_FALLBACKS = declare(
    "hetero_rl_worker_weight_fallbacks_total", "Times that a full copy took the place of something damaged."
)
_BYPASSES = declare(
    "hetero_rl_worker_relay_bypasses_total", "Times that the hub was asked in place of the relay."
)
_RESTARTS = declare("hetero_rl_worker_engine_restarts_total", "Engines that died and were replaced.")


class WorkerReadings:
    """A source over a session; make it on the session's event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()

    def collect(self) -> list[Reading]:
        """What is so now."""

        async def ask() -> list[Reading]:  # ruff: ignore[unused-async] awaited on the session's loop, where nothing moves meanwhile
            return list(worker_readings(self._session))

        return on_loop(self._loop, ask)


def worker_readings(session: Session) -> Iterator[Reading]:
    """All of a worker's readings."""
    keeper, gate, tally = session.keeper, session.gate, session.tally
    yield _TOKENS(keeper.generated_tokens)
    yield _BUSY(keeper.busy_seconds)
    yield _SEQUENCES(tally.completions)
    yield _UNFINISHED(keeper.engine.unfinished_sequences)
    yield _CAPACITY(session.capacity)
    yield _LEASES(len(session.lease_ids))
    yield _UNSENT(session.outbox.qsize())
    yield _CREDITS(session.room)
    yield _VERSION(gate.version)
    yield _OPEN(gate.is_open)
    yield _QUARANTINED(gate.quarantined)
    yield _SYNCS(tally.syncs)
    for phase, seconds in dataclasses.asdict(tally.seconds).items():
        yield _SYNC_SECONDS(seconds, phase)
    yield _SYNC_BYTES(tally.fetched_bytes)
    yield _FALLBACKS(tally.fallbacks)
    yield _BYPASSES(tally.relay_bypasses)
    yield _RESTARTS(keeper.restarts)
