"""Brings results to the hub: the same parcel under the same sequence number until the hub has it on disk.

    outbox ──► sender 1 ─┐
           ──► sender 2 ─┼──► hub    each sender has one call under way; a repeat is acknowledged as a duplicate
           ──► ...       ┘

A sender takes everything that waits, up to what fits into a message: one finished group goes out alone and at once, and
the more finish together, or while the hub is busy, the more share a call and a sync of the hub's disk.

Shutdown: the conductor waits for the outbox to be empty, then cancels the senders. What is left is lost with the
process, and the hub gives its leases to somebody else.
"""

import asyncio
import logging
from collections.abc import Sequence

from hetero_rl.errors import HeteroRLError, RefusedError
from hetero_rl.telemetry.tracing import group_spans
from hetero_rl.wire.messages import Submission, TrajectoryBatch, WorkerIdentity
from hetero_rl.worker.resend import may_pass
from hetero_rl.worker.session import Parcel, Session

__all__ = ["submit_loop"]

_logger = logging.getLogger(__name__)

_SENDERS = 4
_MOST_PARCELS = 64  # of one call
_BYTES_PER_SAMPLE = 128  # besides its columns
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
    left_over: Parcel | None = None
    while True:
        first = left_over or await session.outbox.get()
        parcels, left_over = _gather(session, first)
        try:
            with group_spans("submit", _groups_of(parcels)):
                if len(parcels) == 1:
                    await _send_one(session, parcels[0], refusals)
                else:
                    await _send_together(session, parcels, refusals)
        finally:
            for parcel in parcels:
                session.acknowledged(parcel)
                session.outbox.task_done()


def _groups_of(parcels: Sequence[Parcel]) -> list[str]:
    return [parcel.results.group_id for parcel in parcels if isinstance(parcel.results, TrajectoryBatch)]


def _gather(session: Session, first: Parcel) -> tuple[list[Parcel], Parcel | None]:
    """What waits and fits into one call, and the parcel that did not fit any more."""
    parcels, size = [first], _size(first)
    while len(parcels) < _MOST_PARCELS and not session.outbox.empty():
        parcel = session.outbox.get_nowait()
        size += _size(parcel)
        if size > session.run.limits.max_message_bytes // 2:
            return parcels, parcel
        parcels.append(parcel)
    return parcels, None


def _size(parcel: Parcel) -> int:
    return parcel.results.size + _BYTES_PER_SAMPLE * (1 + parcel.completions)


async def _send_one(session: Session, parcel: Parcel, refusals: _Refusals) -> None:
    try:
        await session.link.call(
            f"submission {parcel.sequence}",
            lambda identity: session.link.port.submit_results(_submission(parcel, identity)),
        )
        refusals.in_a_row = 0
    except RefusedError as error:
        _note_refusal(session, parcel, error, refusals)


async def _send_together(session: Session, parcels: Sequence[Parcel], refusals: _Refusals) -> None:
    """One call for all; what may pass, and what only a single call can settle, goes out again alone."""
    try:
        outcomes = await session.link.call(
            f"submissions {parcels[0].sequence} to {parcels[-1].sequence}",
            lambda identity: session.link.port.submit_batch(
                [_submission(parcel, identity) for parcel in parcels]
            ),
        )
    except RefusedError as error:
        _logger.info("%d submissions were refused together, each goes out alone: %s", len(parcels), error)
        for parcel in parcels:
            await _send_one(session, parcel, refusals)
        return
    for parcel, outcome in zip(parcels, outcomes, strict=True):
        if not isinstance(outcome, HeteroRLError):
            refusals.in_a_row = 0
        elif isinstance(outcome, RefusedError) and not _settled_alone(outcome):
            _note_refusal(session, parcel, outcome, refusals)
        else:
            await _send_one(session, parcel, refusals)


def _settled_alone(error: RefusedError) -> bool:
    """Whether the link has an answer to this refusal: waiting, or joining again."""
    return may_pass(error) or error.reason == "NOT_FOUND"


def _submission(parcel: Parcel, identity: WorkerIdentity) -> Submission:
    return Submission(
        worker=identity,
        sequence=parcel.sequence,
        lease_id=parcel.lease_id,
        final=parcel.final,
        results=parcel.results,
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
