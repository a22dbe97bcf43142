"""Results of workers: checked against lease and group, stored once."""

from typing import cast

from hetero_rl.errors import RefusedError
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.identity import current_worker
from hetero_rl.hub.handlers.runs import description_of
from hetero_rl.hub.handlers.scoring import is_score_lease, submit_scores
from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.records import GroupRow, GroupState, LeaseRow, SequenceRow, SubmissionId, WorkerRow
from hetero_rl.wire.columns import Int32Bytes
from hetero_rl.wire.messages import (
    GenerateWork,
    Lease,
    Submission,
    SubmissionReceipt,
    TrajectoryBatch,
    WorkerState,
)
from hetero_rl.wire.validation import check_submission

__all__ = ["submit_results"]

_NO_PROMPT = Int32Bytes(b"")


def submit_results(context: HubContext, submission: Submission) -> SubmissionReceipt:
    """Stores a submission and moves its group on; says so again when the same submission comes again."""
    identity = submission.worker
    key = SubmissionId(identity.worker_name, identity.worker_epoch, submission.sequence)
    if context.store.has_submission(key) or context.store.has_score_submission(key):
        context.store.count("submissions_repeated")
        worker = context.store.worker(identity.worker_name)
        return SubmissionReceipt(duplicate=True, credits=_credits(worker))
    worker = current_worker(context, identity)
    lease = _lease_of(context, submission)
    if is_score_lease(lease):
        submit_scores(context, submission, lease, worker, description_of(context, context.known_run()))
        return SubmissionReceipt(duplicate=False, credits=_credits(worker))
    row = context.store.group(lease.group_id)
    if row is None:
        raise AssertionError(f"lease {lease.lease_id} has no group")
    batch = _check(context, submission, lease, row, worker)
    sequences = _sequence_rows(context, batch)
    context.store.add_submission(key, lease.lease_id, worker.request.backend, batch, sequences)
    _advance(context, lease, row, sequences, final=submission.final)
    context.store.add_completions(identity.worker_name, len(sequences))
    return SubmissionReceipt(duplicate=False, credits=_credits(worker))


def _credits(worker: WorkerRow | None) -> int:
    if worker is None or worker.state is not WorkerState.ACTIVE:
        return 0
    return worker.request.capabilities.max_concurrent_sequences


def _lease_of(context: HubContext, submission: Submission) -> LeaseRow:
    lease = context.store.lease(submission.lease_id)
    identity = submission.worker
    held = lease is not None and (lease.worker_name, lease.worker_epoch) == (
        identity.worker_name,
        identity.worker_epoch,
    )
    if lease is None or not held:
        raise RefusedError(
            f"lease {submission.lease_id!r} has ended or belongs to another worker: drop its results",
            "LEASE_LOST",
            {"lease_id": submission.lease_id},
        )
    return lease


class _PublishedVersions:
    """Every published weight version, as a container that asks the store."""

    def __init__(self, store: HubStore) -> None:
        self._store = store

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self._store.version(version) is not None


def _check(
    context: HubContext, submission: Submission, lease: LeaseRow, row: GroupRow, worker: WorkerRow
) -> TrajectoryBatch:
    """The submission's completions, held against its lease, the run and the published versions."""
    stored = context.store.stored_indices(lease.group_id) if row.stored else frozenset()
    work = GenerateWork(
        group_id=row.group_id,
        purpose=row.purpose,
        prompt_token_ids=_NO_PROMPT,  # results are not held against it
        sample_indices=tuple(index for index in lease.sample_indices if index not in stored),
        sampling=context.store.sampling(row.group_id),
    )
    promise = Lease(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        time_to_live=context.settings.lease_seconds,
        min_weight_version=lease.min_weight_version,
        work=work,
    )
    check_submission(
        submission,
        promise,
        description_of(context, context.known_run()),
        _PublishedVersions(context.store),
        numerics_id=worker.request.numerics.numerics_id,
    )
    return cast(
        "TrajectoryBatch", submission.results
    )  # the check refused anything else for a lease of completions


def _sequence_rows(context: HubContext, batch: TrajectoryBatch) -> list[SequenceRow]:
    steps = {}
    for version in {span.weight_version for span in batch.version_spans}:
        row = context.store.version(version)
        steps[version] = row.step if row else 0
    scalars = zip(batch.sample_indices, batch.lengths, batch.finish_reasons, strict=True)
    if len(steps) == 1:
        ((version, step),) = steps.items()
        return [SequenceRow(batch.group_id, *scalar, version, version, step, step) for scalar in scalars]
    versions: list[list[int]] = [[] for _ in batch.sample_indices]
    for span in batch.version_spans:
        versions[span.sample].append(span.weight_version)
    return [
        SequenceRow(
            batch.group_id,
            *scalar,
            oldest_version=min(seen),
            newest_version=max(seen),
            oldest_step=min(map(steps.__getitem__, seen)),
            newest_step=max(map(steps.__getitem__, seen)),
        )
        for scalar, seen in zip(scalars, versions, strict=True)
    ]


def _part_is_whole(context: HubContext, lease: LeaseRow, row: GroupRow) -> bool:
    """Whether a lease of a part of its group has brought all that it was to bring."""
    if len(lease.sample_indices) == row.group_size:
        return False
    return context.store.stored_indices(row.group_id).issuperset(lease.sample_indices)


def _end_lease(context: HubContext, lease: LeaseRow) -> None:
    context.store.remove_lease(lease.lease_id)
    context.liveness.lease_ends.pop(lease.lease_id, None)
    if context.liveness.withheld:
        context.liveness.withheld = False
        context.notify(Topic.WORK)


def _advance(
    context: HubContext, lease: LeaseRow, row: GroupRow, sequences: list[SequenceRow], *, final: bool
) -> None:
    """Finishes the group when it is whole. Until then the lease goes on, after the final part only for a moment.

    A worker may send the parts of a large group at the same time, so the final one can overtake others. The lease then ends
    soon by itself unless they arrive, and the rest of the group is queued again.
    """
    stored = row.stored + len(sequences)
    oldest = min(sequence.oldest_step for sequence in sequences)
    state = row.state
    if stored == row.group_size:
        state = GroupState.FINISHED
        _end_lease(context, lease)
        context.notify(Topic.RESULTS)
    elif _part_is_whole(context, lease, row):
        _end_lease(context, lease)
    elif final:
        soon = context.clock.monotonic() + context.settings.heartbeat_seconds
        context.liveness.lease_ends[lease.lease_id] = soon
    if row.oldest_step >= 0:
        oldest = min(row.oldest_step, oldest)
    context.store.put_group(row.with_results(state, stored, oldest))
