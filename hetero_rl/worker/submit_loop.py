"""Brings results to the hub: the same parcel under the same sequence number until the hub has it on disk.

    outbox ──► sender 1 ─┐
           ──► sender 2 ─┼──► hub    each sender has one parcel under way; a repeat is acknowledged as a duplicate
           ──► ...       ┘
Shutdown: the conductor waits for the outbox to be empty, then cancels the senders. What is left is lost with the
process, and the hub gives its leases to somebody else.
"""

import asyncio
import logging

from hetero_rl.errors import RefusedError
from hetero_rl.wire.messages import Submission
from hetero_rl.worker.session import Parcel, Session

__all__ = ["submit_loop"]

_logger = logging.getLogger(__name__)

_SENDERS = 4
_MOST_REFUSALS = 8  # in a row: a worker whose results are all refused is of no use and must say so


async def submit_loop(session: Session) -> None:
    """Runs until it is cancelled; raises what ends the worker."""
    refusals = _Refusals()
    async with asyncio.TaskGroup() as group:
        for _ in range(_SENDERS):
            group.create_task(_send(session, refusals))


class _Refusals:
    """Counts refused submissions in a row."""

    def __init__(self) -> None:
        self.in_a_row = 0


async def _send(session: Session, refusals: _Refusals) -> None:
    while True:
        parcel = await session.outbox.get()
        try:
            await _deliver(session, parcel)
            refusals.in_a_row = 0
        except RefusedError as error:
            _note_refusal(session, parcel, error, refusals)
        finally:
            session.acknowledged(parcel)
            session.outbox.task_done()


async def _deliver(session: Session, parcel: Parcel) -> None:
    await session.link.call(
        f"submission {parcel.sequence}",
        lambda identity: session.link.port.submit_results(
            Submission(
                worker=identity,
                sequence=parcel.sequence,
                lease_id=parcel.lease_id,
                final=parcel.final,
                results=parcel.results,
            )
        ),
    )


def _note_refusal(session: Session, parcel: Parcel, error: RefusedError, refusals: _Refusals) -> None:
    """A refusal is final for the parcel; what it means for the worker depends on the reason."""
    if error.reason in {"LEASE_LOST", "QUARANTINED"}:
        _logger.warning("results of lease %s came too late: %s", parcel.lease_id, error)
        session.drop_leases([parcel.lease_id], "the hub does not wait for it any more")
        return
    _logger.error("results of lease %s were refused: %s: %s", parcel.lease_id, error.reason, error)
    refusals.in_a_row += 1
    if refusals.in_a_row >= _MOST_REFUSALS:
        raise RefusedError(
            f"the hub refused {refusals.in_a_row} submissions in a row; this worker gives up. Last: {error}",
            error.reason,
            error.details,
        ) from error
