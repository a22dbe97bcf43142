"""Runs the loops of a worker that has joined, and ends them in the right order.

lease loop ──► leases (tasks) ──► outbox ──► submit loop ──► hub
weight loop ──► gate ──► lease loop, leases
heartbeat loop ──► hub

stop (signal, drain, run complete):  lease loop ends ─► leases end, or are cancelled after `pacing.drain`
    ─► outbox is empty, or `pacing.flush` is over ─► Leave ─► the other loops are cancelled
a loop fails:  leases are cancelled ─► Leave, if the hub still listens ─► the error goes up
"""

import asyncio
import contextlib
import logging

from hetero_rl.errors import HeteroRLError
from hetero_rl.worker.heartbeat_loop import heartbeat_loop
from hetero_rl.worker.lease_loop import lease_loop
from hetero_rl.worker.session import Session
from hetero_rl.worker.submit_loop import submit_loop
from hetero_rl.worker.weight_loop import WeightLoop

__all__ = ["conduct"]

_logger = logging.getLogger(__name__)

_LEAVE_SECONDS = 5.0


async def conduct(session: Session, weight_loop: WeightLoop) -> None:
    """Works until `session.stopping` is set or a loop fails, then leaves the hub.

    Raises:
        HeteroRLError: What made a loop fail.
    """
    leasing = asyncio.create_task(lease_loop(session), name="lease loop")
    others = [
        asyncio.create_task(weight_loop.run(), name="weight loop"),
        asyncio.create_task(submit_loop(session), name="submit loop"),
        asyncio.create_task(heartbeat_loop(session), name="heartbeat loop"),
    ]
    reason = "failed"
    try:
        await asyncio.wait([leasing, *others], return_when=asyncio.FIRST_COMPLETED)
        _raise_failure([leasing, *others])
        await _drain(session, others)
        reason = session.stop_reason
    except HeteroRLError as error:
        reason = f"failed: {error}"
        raise
    finally:
        await _cancel([leasing, *session.running.values()])
        await _leave(session, reason)
        await _cancel(others)


async def _drain(session: Session, loops: list[asyncio.Task[None]]) -> None:
    """Lets running leases end and their results reach the hub, within the stated times."""
    if session.running:
        _logger.info(
            "%d leases are running; they have %.0f s to end", len(session.running), session.pacing.drain
        )
        await asyncio.wait(list(session.running.values()), timeout=session.pacing.drain)
    emptied = asyncio.create_task(session.outbox.join())
    await asyncio.wait([emptied, *loops], timeout=session.pacing.flush, return_when=asyncio.FIRST_COMPLETED)
    emptied.cancel()
    _raise_failure(loops)


def _raise_failure(tasks: list[asyncio.Task[None]]) -> None:
    """Raises what ended a task; the cause itself when several tasks of a group failed together."""
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise _first_cause(error)


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _leave(session: Session, reason: str) -> None:
    """Gives what is left back; a hub that does not answer finds out by itself."""
    with contextlib.suppress(HeteroRLError, TimeoutError):
        async with asyncio.timeout(_LEAVE_SECONDS):
            await session.link.port.leave(session.link.identity, reason)
