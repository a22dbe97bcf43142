"""Asks the hub for work whenever the engine has room, and works on what it gets.

    room in the engine, gate open ──► ask (waits at the hub) ──► leases ──► one task each: generate ──► outbox
                                       ▲
    a new version opened the gate ─────┘  a second question goes out at once: the first one still names the old version.
                                          It is left to end by itself, since cancelling it could lose a lease.

Who waits: the loop on questions, on the gate and on `stopping`. Shutdown: `stopping` ends the loop; open questions are
cancelled, and what they might have been granted goes back with Leave. Running leases are the conductor's business.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any

from hetero_rl.errors import BackendError, EngineError, InvalidMessageError
from hetero_rl.telemetry.tracing import group_spans, record_groups
from hetero_rl.wire.messages import (
    GenerateWork,
    Lease,
    LeaseGrant,
    NoWorkReason,
    ScoreBatch,
    ScoreWork,
    TrajectoryBatch,
)
from hetero_rl.worker.results import split_by_size, trajectory_batch
from hetero_rl.worker.session import Session

__all__ = ["lease_loop"]

_logger = logging.getLogger(__name__)

_MOST_QUESTIONS = 3
_EMPTY_ANSWER_PAUSE = (
    0.05  # seconds; a hub that answers at once instead of waiting is not asked in a tight loop
)


async def lease_loop(session: Session) -> None:
    """Runs until `session.stopping` is set."""
    questions: set[asyncio.Task[LeaseGrant]] = set()
    asked_version = 0
    try:
        while not session.stopping.is_set():
            if not await _gate_opened(session):
                break
            wanted = not questions or asked_version != session.gate.version
            if wanted and session.room and len(questions) < _MOST_QUESTIONS:
                asked_version = session.gate.version
                questions.add(asyncio.create_task(_ask(session)))
            answered = await _next_answers(session, questions)
            questions -= answered
            for question in answered:
                _take_grant(session, question.result())
    finally:
        for question in questions:
            question.cancel()


async def _gate_opened(session: Session) -> bool:
    """Waits for the gate; False when the worker stops instead."""
    await _first_of(session.gate.wait_open(), session.stopping.wait())
    return not session.stopping.is_set()


async def _next_answers(
    session: Session, questions: set[asyncio.Task[LeaseGrant]]
) -> set[asyncio.Task[LeaseGrant]]:
    """Questions that have been answered, after waiting for one, for a new version, for room or for the stop."""
    session.gate.changed.clear()
    # Without an open question the engine is full: it has room when a completion ends, which nobody tells.
    timeout = None if questions else session.pacing.look_again
    await _first_of(*questions, session.gate.changed.wait(), session.stopping.wait(), timeout=timeout)
    return {question for question in questions if question.done()}


async def _first_of(*awaitables: Awaitable[Any], timeout: float | None = None) -> None:  # ruff: ignore[async-function-with-timeout] - a bound on waiting for any of several, not on one call
    """Returns when one is done; those that were not tasks before are cancelled, tasks are left alone."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()


async def _ask(session: Session) -> LeaseGrant:
    """One question, repeated until the hub answers it."""
    started = time.monotonic()
    grant = await session.link.call(
        "lease",
        lambda identity: session.link.port.lease_work(
            identity,
            loaded_weight_version=session.gate.version,
            free_sequences=max(session.room, 1),
            wait=session.pacing.lease_wait,
        ),
    )
    seconds = time.monotonic() - started
    if grant.leases:
        session.ahead.note_question(seconds)
    elif seconds < _EMPTY_ANSWER_PAUSE:
        await asyncio.sleep(_EMPTY_ANSWER_PAUSE)
    return grant


def _take_grant(session: Session, grant: LeaseGrant) -> None:
    match grant.no_work_reason:
        case NoWorkReason.RUN_COMPLETE:
            session.stop("the run is complete")
        case NoWorkReason.DRAINING:
            session.stop("the hub drains this worker")
        case NoWorkReason.QUARANTINED:
            _logger.warning("the hub gives no work: this worker is in quarantine")
            session.gate.quarantine()
    record_groups("lease", _groups_of(grant))
    for lease in grant.leases:
        session.note_lease(lease)
        task = asyncio.create_task(_work(session, lease), name=f"lease {lease.lease_id}")
        session.running[lease.lease_id] = task


def _groups_of(grant: LeaseGrant) -> list[str]:
    return [lease.work.group_id for lease in grant.leases if isinstance(lease.work, GenerateWork)]


async def _work(session: Session, lease: Lease) -> None:
    """Does the work of one lease, again from the start when the engine dies under it."""
    try:
        results = None
        while results is None:
            results = await _attempt(session, lease)
        session.hand_in(lease.lease_id, results)
    except (BackendError, InvalidMessageError) as error:
        # Only this work is wrong. Nobody renews its lease any more, so the hub gives it to somebody else.
        _logger.error("lease %s cannot be done: %s", lease.lease_id, error)  # ruff: ignore[error-instead-of-exception] - the message names all there is
    finally:
        session.running.pop(lease.lease_id, None)


async def _attempt(session: Session, lease: Lease) -> list[TrajectoryBatch | ScoreBatch] | None:
    """Results; None when the engine died."""
    await session.gate.wait_open()
    engine = session.keeper.engine
    try:
        if isinstance(lease.work, ScoreWork):
            results: list[TrajectoryBatch | ScoreBatch] = [await _scores(session, lease.work)]
        else:
            results = await _completions(session, lease.work)
    except EngineError as error:
        session.keeper.report_failure(engine, error)
        session.gate.close()
        session.gate.attention.set()
        return None
    # The newest tokens may be of a version whose probe card is being scored right now.
    await session.gate.wait_open()
    return results


async def _completions(session: Session, work: GenerateWork) -> list[TrajectoryBatch | ScoreBatch]:
    started = time.monotonic()
    with group_spans("generate", [work.group_id], completions=len(work.sample_indices)):
        completions = await session.keeper.engine.generate(work)
    seconds = time.monotonic() - started
    session.ahead.note_generation(seconds)
    batch = trajectory_batch(work, completions, session.numerics_id, seconds)
    return list(split_by_size(batch, completions, session.run.limits.max_message_bytes // 2))


async def _scores(session: Session, work: ScoreWork) -> ScoreBatch:
    log_probs = await session.keeper.engine.score(work)
    return ScoreBatch(
        score_id=work.score_id,
        log_probs=log_probs,
        weight_version=work.weight_version,
        numerics_id=session.numerics_id,
    )
