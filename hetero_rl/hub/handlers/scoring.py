"""Given tokens that chosen workers score, for calibrations: asked for, leased, handed in, asked about.

request_calibration ──► one score for each worker ──lease, at exactly its weight version──► the worker
QUEUED ──► LEASED ──► DONE        ▲ a lost lease queues it again, three times at most
└──► FAILED: the worker holds a newer version already, or gave up
"""

import dataclasses
from collections.abc import Collection

from hetero_rl.errors import InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.stores.records import LeaseRow, ScoreRow, ScoreState, SubmissionId, WorkerRow
from hetero_rl.wire.columns import Float32Bytes, float32_column
from hetero_rl.wire.messages import (
    Lease,
    ProbeCard,
    RunDescription,
    ScoreBatch,
    ScoreStatus,
    ScoreWork,
    Submission,
    WorkerState,
)
from hetero_rl.wire.validation import check_probe_card, check_submission

__all__ = [
    "get_score",
    "is_score_lease",
    "lease_scores",
    "release_score",
    "request_calibration",
    "submit_scores",
]

_OWNER = "score/"  # no group id holds a slash
_MOST_ATTEMPTS = 3
_MOST_LEASES = 4  # per call
_MOST_SCORES = 100_000  # of one run
_BYTES_PER_TOKEN = 8  # an id on the way there, or a log-probability on the way back, with room for the rest


def request_calibration(
    context: HubContext, backends: Collection[str], card: ProbeCard, weight_version: int
) -> tuple[str, ...]:
    """Queues the card for every active worker of the backends that can score; returns their score ids.

    Raises:
        InvalidMessageError: The card cannot be scored, or is larger than a message.
        RefusedError: UNKNOWN_VERSION, the version cannot be loaded any more or never could; NOT_FOUND, a backend has no
            worker that could do it.
    """
    run = context.open_run()
    _check_card(card, run.request.limits.vocabulary_size, context.settings.max_message_bytes)
    version = context.store.version(weight_version)
    if version is None or version.pruned or version.abandoned:
        raise RefusedError(
            f"weight version {weight_version} is not there to be scored with; the newest is {context.latest_version()}",
            "UNKNOWN_VERSION",
            {"field": "weight_version"},
        )
    workers = _workers_of(context, backends)
    first = context.store.count_scores()
    if first + len(workers) > _MOST_SCORES:
        raise RefusedError(f"this run has {first} scores: start a calibration of its own", "NO_CREDIT")
    ids = []
    for number, worker in enumerate(workers, first):
        row = ScoreRow(
            score_id=f"s{number:06d}",
            worker_name=worker.request.worker_name,
            weight_version=weight_version,
            lengths=card.lengths,
            token_ids=card.token_ids,
        )
        context.store.put_score(row)
        ids.append(row.score_id)
    context.notify(Topic.WORK)
    return tuple(ids)


def _check_card(card: ProbeCard, vocabulary_size: int, max_message_bytes: int) -> None:
    tokens = sum(card.lengths)
    zeros = float32_column([0.0] * max(tokens - len(card.lengths), 0))
    check_probe_card(dataclasses.replace(card, log_probs=zeros, tolerance=1.0), vocabulary_size)
    if tokens * _BYTES_PER_TOKEN > max_message_bytes:
        raise InvalidMessageError(
            f"the card has {tokens} tokens; at most {max_message_bytes // _BYTES_PER_TOKEN} fit into one answer: ask in parts",
            "RequestCalibrationRequest.card",
            "TOO_LARGE",
        )


def _workers_of(context: HubContext, backends: Collection[str]) -> list[WorkerRow]:
    able = [
        worker
        for worker in context.store.workers()
        if worker.state is WorkerState.ACTIVE and worker.request.capabilities.scoring
    ]
    there = {worker.request.backend for worker in able}
    missing = sorted(set(backends) - there) if backends else ([] if able else ["any"])
    if missing:
        raise RefusedError(
            f"no active worker of backend {', '.join(missing)} can score; backends that can: {sorted(there) or 'none'}",
            "NOT_FOUND",
        )
    return [worker for worker in able if not backends or worker.request.backend in backends]


def get_score(context: HubContext, score_id: str) -> ScoreStatus:
    """What became of a score."""
    row = context.store.score(score_id)
    if row is None:
        raise RefusedError(f"no score is called {score_id!r}", "NOT_FOUND")
    scores = None
    if row.state is ScoreState.DONE and row.log_probs is not None:
        scores = ScoreBatch(
            score_id=score_id,
            log_probs=Float32Bytes(row.log_probs),
            weight_version=row.weight_version,
            numerics_id=row.numerics_id,
        )
    return ScoreStatus(worker_name=row.worker_name, scores=scores, failure=row.failure)


def lease_scores(context: HubContext, worker: WorkerRow, loaded_weight_version: int) -> list[Lease]:
    """Leases what the worker is to score with the version it holds; what it can never score any more fails."""
    leases: list[Lease] = []
    for row in context.store.queued_scores(worker.request.worker_name):
        if row.weight_version < loaded_weight_version:
            _fail(
                context,
                row,
                f"the worker holds version {loaded_weight_version} already; it was to score version {row.weight_version}",
            )
        elif row.weight_version == loaded_weight_version and len(leases) < _MOST_LEASES:
            leases.append(_lease(context, worker, row))
    return leases


def _lease(context: HubContext, worker: WorkerRow, row: ScoreRow) -> Lease:
    lease = LeaseRow(
        lease_id=f"{row.score_id}.{row.attempts}",
        group_id=f"{_OWNER}{row.score_id}",
        worker_name=worker.request.worker_name,
        worker_epoch=worker.worker_epoch,
        attempt=row.attempts,
        min_weight_version=row.weight_version,
        sample_indices=(),
    )
    context.store.add_lease(lease)
    context.store.put_score(dataclasses.replace(row, state=ScoreState.LEASED, attempts=row.attempts + 1))
    context.liveness.lease_ends[lease.lease_id] = context.clock.monotonic() + context.settings.lease_seconds
    return _promise(context, lease, row)


def _promise(context: HubContext, lease: LeaseRow, row: ScoreRow) -> Lease:
    return Lease(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        time_to_live=context.settings.lease_seconds,
        min_weight_version=row.weight_version,
        work=ScoreWork(
            score_id=row.score_id,
            lengths=row.lengths,
            token_ids=row.token_ids,
            weight_version=row.weight_version,
        ),
    )


def is_score_lease(lease: LeaseRow) -> bool:
    """Whether a lease is of a score rather than of a group."""
    return lease.group_id.startswith(_OWNER)


def submit_scores(
    context: HubContext, submission: Submission, lease: LeaseRow, worker: WorkerRow, run: RunDescription
) -> None:
    """Stores scores that answer their lease; raises InvalidMessageError for those that do not."""
    row = context.store.score(lease.group_id.removeprefix(_OWNER))
    if row is None:
        raise AssertionError(f"lease {lease.lease_id} has no score")
    check_submission(
        submission,
        _promise(context, lease, row),
        run,
        (),
        numerics_id=worker.request.numerics.numerics_id,
    )
    if not isinstance(submission.results, ScoreBatch):
        raise TypeError("the check refuses anything else for a lease of a score")
    identity = submission.worker
    context.store.put_score(
        dataclasses.replace(
            row,
            state=ScoreState.DONE,
            submission=SubmissionId(identity.worker_name, identity.worker_epoch, submission.sequence),
            numerics_id=submission.results.numerics_id,
            log_probs=submission.results.log_probs,
        )
    )
    context.store.remove_lease(lease.lease_id)
    context.liveness.lease_ends.pop(lease.lease_id, None)


def release_score(context: HubContext, lease: LeaseRow) -> None:
    """Queues a score again whose lease ended without results, or gives it up."""
    row = context.store.score(lease.group_id.removeprefix(_OWNER))
    if row is None or row.state is not ScoreState.LEASED:
        return
    if row.attempts >= _MOST_ATTEMPTS:
        _fail(context, row, f"leased {row.attempts} times without results; the worker's log says why")
    else:
        context.store.put_score(dataclasses.replace(row, state=ScoreState.QUEUED))


def _fail(context: HubContext, row: ScoreRow, reason: str) -> None:
    context.store.put_score(dataclasses.replace(row, state=ScoreState.FAILED, failure=reason))
    context.event("score_failed", f"{row.score_id}: {reason}", row.worker_name)
