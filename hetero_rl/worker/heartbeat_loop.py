"""Tells the hub that this worker lives, and hears what has changed there.

    every interval: leases, version, counters ──► hub ──► lost leases are dropped; draining stops the worker;
                                                          quarantine closes the gate, its end asks for a new probe
Shutdown: cancelled by the conductor, last of all loops, so that leases live while results are on their way.
"""

import asyncio
import contextlib
import logging
from functools import partial

from hetero_rl.wire.messages import Heartbeat, HeartbeatReply, WeightSync, WorkerIdentity, WorkerState
from hetero_rl.worker.session import Session

__all__ = ["heartbeat_loop"]

_SYNCS_PER_BEAT = 64  # what a heartbeat may report

_logger = logging.getLogger(__name__)


async def heartbeat_loop(session: Session) -> None:
    """Runs until it is cancelled; raises what ends the worker."""
    while True:
        syncs = tuple(session.weight_syncs)[:_SYNCS_PER_BEAT]
        # Its repeats are never further apart than heartbeats are: the first that gets through after a cut wakes every
        # other call that waits for its repeat.
        interval = session.link.grant.heartbeat_interval
        reply = await session.link.call("heartbeat", partial(_beat, session, syncs), longest_delay=interval)
        _forget_reported(session, syncs)
        _hear(session, reply)
        await asyncio.sleep(session.link.grant.heartbeat_interval)


async def _beat(session: Session, syncs: tuple[WeightSync, ...], identity: WorkerIdentity) -> HeartbeatReply:
    return await session.link.port.heartbeat(
        Heartbeat(
            worker=identity,
            lease_ids=session.lease_ids,
            loaded_weight_version=session.gate.version,
            generated_tokens=session.keeper.generated_tokens,
            busy_seconds=session.keeper.busy_seconds,
            weight_syncs=syncs,
        )
    )


def _forget_reported(session: Session, syncs: tuple[WeightSync, ...]) -> None:
    for sync in syncs:
        with contextlib.suppress(ValueError):  # newer ones have pushed it out meanwhile
            session.weight_syncs.remove(sync)


def _hear(session: Session, reply: HeartbeatReply) -> None:
    session.drop_leases(reply.lost_lease_ids, "the hub has given it to somebody else")
    gate = session.gate
    gate.hub_trusts = reply.state is WorkerState.ACTIVE
    if reply.state is WorkerState.DRAINING:
        session.stop("the hub drains this worker")
    elif reply.state is WorkerState.QUARANTINED and not gate.quarantined:
        _logger.warning("the hub has put this worker into quarantine")
        gate.quarantine()
    elif gate.hub_trusts and gate.quarantined:
        _logger.info("the quarantine has ended; the probe card is scored again")
        gate.attention.set()
