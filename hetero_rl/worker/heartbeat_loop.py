"""Tells the hub that this worker lives, and hears what has changed there.

    every interval: leases, version, counters ──► hub ──► lost leases are dropped; draining stops the worker;
                                                          quarantine closes the gate, its end asks for a new probe
Shutdown: cancelled by the conductor, last of all loops, so that leases live while results are on their way.
"""

import asyncio
import logging

from hetero_rl.wire.messages import Heartbeat, HeartbeatReply, WorkerState
from hetero_rl.worker.session import Session

__all__ = ["heartbeat_loop"]

_logger = logging.getLogger(__name__)


async def heartbeat_loop(session: Session) -> None:
    """Runs until it is cancelled; raises what ends the worker."""
    while True:
        reply = await session.link.call(
            "heartbeat",
            lambda identity: session.link.port.heartbeat(
                Heartbeat(
                    worker=identity,
                    lease_ids=session.lease_ids,
                    loaded_weight_version=session.gate.version,
                    generated_tokens=session.keeper.generated_tokens,
                    busy_seconds=session.keeper.busy_seconds,
                )
            ),
        )
        _hear(session, reply)
        await asyncio.sleep(session.link.grant.heartbeat_interval)


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
