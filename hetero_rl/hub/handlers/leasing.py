"""Leases: which work a worker gets, how long it keeps it, and how it comes back."""

import dataclasses
import math
from collections.abc import Sequence

from hetero_rl.errors import InvalidMessageError
from hetero_rl.hub.handlers.admission import required_step
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.identity import current_worker
from hetero_rl.hub.handlers.placement import Parts, measured_workers, open_share
from hetero_rl.hub.handlers.scoring import is_score_lease, lease_scores, release_score
from hetero_rl.hub.stores.records import (
    GroupRow,
    GroupState,
    LeaseRow,
    RunRecord,
    RunState,
    VersionRow,
    WorkerRow,
)
from hetero_rl.wire.messages import (
    GenerateWork,
    Lease,
    LeaseGrant,
    NoWorkReason,
    Purpose,
    WorkerIdentity,
    WorkerState,
)

__all__ = ["expire_leases", "lease_work", "release_leases"]

_MOST_LEASES = 64  # per call
_MOST_SHARED = 256  # queued groups that are looked at to share them out

_STATE_REASONS = {
    WorkerState.DRAINING: NoWorkReason.DRAINING,
    WorkerState.QUARANTINED: NoWorkReason.QUARANTINED,
    # A long poll of a worker that was declared dead meanwhile: nobody may be listening.
    WorkerState.DEAD: NoWorkReason.QUEUE_EMPTY,
    WorkerState.LEFT: NoWorkReason.QUEUE_EMPTY,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _NoWork:
    reason: NoWorkReason
    min_weight_version: int = 0


def lease_work(
    context: HubContext,
    identity: WorkerIdentity,
    *,
    loaded_weight_version: int,
    free_sequences: int,
    waiting: bool = False,
) -> LeaseGrant:
    """Leases the oldest work that the worker can do now: scores and evaluation first, then training groups behind the gate.

    Args:
        context: The hub.
        identity: Who is calling.
        loaded_weight_version: Version in the worker's engine; 0 before the first.
        free_sequences: Completions that the engine can take now, at least 1.
        waiting: Whether this repeats a call that waits, which is not a sign of life.

    Returns:
        Leases, or the reason why there are none.
    """
    if free_sequences < 1:
        raise InvalidMessageError(
            f"free_sequences is {free_sequences}: ask for work when there is room for it"
        )
    worker = current_worker(context, identity, alive=not waiting)
    context.liveness.loaded[identity.worker_name] = loaded_weight_version
    run = context.known_run()
    reason = _state_reason(context, run, worker)
    chosen: list[_Chosen] = []
    scores: list[Lease] = []
    if reason is None:
        scores = lease_scores(context, worker, loaded_weight_version)
        loaded = context.store.version(loaded_weight_version)
        chosen, reason = _choose(context, run, worker, loaded, free_sequences)
    leases = (*scores, *(_grant(context, worker, choice, loaded_weight_version) for choice in chosen))
    return LeaseGrant(
        leases=leases,
        no_work_reason=None if leases or reason is None else reason.reason,
        min_weight_version=0 if leases or reason is None else reason.min_weight_version,
        latest_weight_version=context.latest_version(),
    )


def _state_reason(context: HubContext, run: RunRecord, worker: WorkerRow) -> _NoWork | None:
    if run.state is RunState.COMPLETE:
        return _NoWork(NoWorkReason.RUN_COMPLETE)
    if run.state is RunState.DETACHED:
        return _NoWork(NoWorkReason.QUEUE_EMPTY)
    if worker.state in _STATE_REASONS:
        return _NoWork(_STATE_REASONS[worker.state])
    if worker.must_pass_probe and _probed(context):
        return _NoWork(NoWorkReason.QUARANTINED)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Chosen:
    """A group, or a part of one, that a worker gets."""

    row: GroupRow
    indices: tuple[int, ...]
    shared: bool = False
    """Whether somebody else works on another part."""


def _choose(
    context: HubContext, run: RunRecord, worker: WorkerRow, loaded: VersionRow | None, free_sequences: int
) -> tuple[list[_Chosen], _NoWork]:
    """The first groups of both queues that fit into the credits and that the loaded weights may start, in order."""
    gate = _Gate(run.request.groups_per_step, run.request.max_lag, loaded, context.store.versions())
    most_leases = _most_leases(context, run)
    parts = Parts(context, worker)
    chosen: list[_Chosen] = []
    idle = not context.store.leases(worker.request.worker_name)
    obstacle = None
    for purpose in (Purpose.EVALUATION, Purpose.TRAIN):
        most = min(most_leases - len(chosen), max(1, free_sequences))
        if purpose is Purpose.TRAIN:
            free_sequences = _fair(context, worker, gate, free_sequences, idle=idle and not chosen)
        taken, obstacle = _fitting(context, purpose, most, gate, parts, free_sequences, idle and not chosen)
        free_sequences -= sum(len(choice.indices) for choice in taken)
        chosen += taken
        # Evaluation under weights that are yet to be published does not hold up training; anything else does.
        if obstacle is not None and obstacle.reason is not NoWorkReason.STALENESS_GATE:
            break
    return chosen, obstacle or _NoWork(NoWorkReason.QUEUE_EMPTY)


def _fitting(
    context: HubContext,
    purpose: Purpose,
    most: int,
    gate: "_Gate",
    parts: Parts,
    room: int,
    idle: bool,
) -> tuple[list[_Chosen], _NoWork | None]:
    """What of one queue fits into the room, in order, and what stands in the way of the next one."""
    chosen: list[_Chosen] = []
    second_best: GroupRow | None = None
    obstacle = None
    for row in context.store.queued_groups(purpose, most):
        obstacle = gate.obstacle(row)
        if obstacle is not None:
            break
        if parts.avoided(row):
            context.liveness.withheld = True
            second_best = second_best or row
            continue
        indices = parts.of(row)
        if len(indices) > room and (chosen or not idle):
            break
        room -= len(indices)
        chosen.append(_Chosen(row, indices, parts.shared(row)))
    # A group that another backend should complete is still better than nothing to do.
    if not chosen and second_best is not None and idle:
        chosen.append(_Chosen(second_best, parts.of(second_best), parts.shared(second_best)))
    return chosen, obstacle


def _fair(context: HubContext, worker: WorkerRow, gate: "_Gate", room: int, *, idle: bool) -> int:
    """The room that a worker's share of the open work leaves; a first group is never refused to an idle one."""
    measured = measured_workers(context)
    if len(measured) < 2 or worker.request.worker_name not in measured:
        return room
    startable = 0
    for row in context.store.queued_groups(Purpose.TRAIN, _MOST_SHARED):
        if gate.obstacle(row) is not None:
            break
        startable += row.group_size - row.stored
    share = open_share(context, worker, measured, startable)
    if share >= room:
        return room
    context.liveness.withheld = True
    return max(1 if idle else 0, math.ceil(share))


def _most_leases(context: HubContext, run: RunRecord) -> int:
    """How many leases fit into half a message, whatever their prompts are."""
    prompt_bytes = 4 * run.request.limits.max_prompt_tokens
    return max(1, min(_MOST_LEASES, context.settings.max_message_bytes // 2 // prompt_bytes))


def _probed(context: HubContext) -> bool:
    """Whether there is a probe card to pass."""
    latest = context.latest_version()
    manifest = context.store.manifest(latest)
    if manifest is None:
        return latest > 0  # it was damaged, and may well have had one
    return manifest.probe_card is not None


@dataclasses.dataclass(frozen=True, slots=True)
class _Gate:
    """Which groups may start under the loaded weights."""

    groups_per_step: int
    max_lag: int
    loaded: VersionRow | None
    versions: tuple[VersionRow, ...]
    """Versions that can be fetched."""

    def obstacle(self, row: GroupRow) -> _NoWork | None:
        """Why a group may not start; None when it may."""
        step = 0
        if row.purpose is Purpose.TRAIN:
            step = max(required_step(row.ordinal, self.groups_per_step, self.max_lag), row.admitted_step)
        if self.loaded is not None and _serves(self.loaded, step, row.min_weight_version):
            return None
        # A worker only goes forward: what it holds or what came before it is nothing to wait for.
        held = self.loaded.version if self.loaded else 0
        newer = [version for version in self.versions if version.version > held]
        usable = [version for version in newer if _serves(version, step, row.min_weight_version)]
        if usable:
            return _NoWork(NoWorkReason.WEIGHTS_TOO_OLD, usable[-1].version)
        return _NoWork(NoWorkReason.STALENESS_GATE)


def _serves(version: VersionRow, step: int, min_weight_version: int) -> bool:
    return not version.abandoned and version.step >= step and version.version >= min_weight_version


def _grant(context: HubContext, worker: WorkerRow, choice: _Chosen, loaded_weight_version: int) -> Lease:
    row = choice.row
    group = context.store.prompt_group(row.group_id)
    loaded = context.store.version(loaded_weight_version)
    lease = LeaseRow(
        lease_id=f"{row.group_id}.{row.attempts}",
        group_id=row.group_id,
        worker_name=worker.request.worker_name,
        worker_epoch=worker.worker_epoch,
        attempt=row.attempts,
        min_weight_version=loaded_weight_version,
        sample_indices=choice.indices,
    )
    whole = len(Parts(context, worker).missing(row)) == len(choice.indices)
    context.store.add_lease(lease)
    context.store.put_group(
        dataclasses.replace(
            row,
            state=GroupState.LEASED if whole else GroupState.QUEUED,
            attempts=row.attempts + 1,
            # While another part runs that older weights began, the group's oldest token may be theirs.
            admitted_step=row.admitted_step
            if choice.shared
            else max(row.admitted_step, loaded.step if loaded else 0),
        )
    )
    context.liveness.lease_ends[lease.lease_id] = context.clock.monotonic() + context.settings.lease_seconds
    return Lease(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        time_to_live=context.settings.lease_seconds,
        min_weight_version=loaded_weight_version,
        work=GenerateWork(
            group_id=row.group_id,
            purpose=row.purpose,
            prompt_token_ids=group.prompt_token_ids,
            sample_indices=lease.sample_indices,
            sampling=group.sampling,
        ),
    )


def release_leases(context: HubContext, leases: Sequence[LeaseRow]) -> None:
    """Ends leases and puts their groups back to the front of the queue; completions already stored stay."""
    for lease in leases:
        context.store.remove_lease(lease.lease_id)
        context.liveness.lease_ends.pop(lease.lease_id, None)
        if is_score_lease(lease):
            release_score(context, lease)
        row = context.store.group(lease.group_id)
        if row is not None and row.state is GroupState.LEASED:
            context.store.put_group(dataclasses.replace(row, state=GroupState.QUEUED))
    if leases:
        context.store.count("leases_returned", len(leases))
        context.notify(Topic.WORK)


def expire_leases(context: HubContext) -> None:
    """Ends the leases whose time is over, and forgets times of leases that no longer exist."""
    now = context.clock.monotonic()
    ends = context.liveness.lease_ends
    # Reading every lease, every second, is for when the two differ: after a start, and when a call was undone.
    if context.store.count_leases() == len(ends):
        late = sorted(lease_id for lease_id, end in ends.items() if end <= now)
        found = [context.store.lease(lease_id) for lease_id in late]
        expired = [lease for lease in found if lease is not None]
        if len(expired) == len(late):
            _expire(context, expired)
            return
    known = {lease.lease_id: lease for lease in context.store.leases()}
    for lease_id in known.keys() - ends.keys():
        ends[lease_id] = now + context.settings.lease_seconds
    for lease_id in ends.keys() - known.keys():
        del ends[lease_id]
    _expire(context, [lease for lease_id, lease in known.items() if ends[lease_id] <= now])


def _expire(context: HubContext, expired: Sequence[LeaseRow]) -> None:
    release_leases(context, expired)
    for lease in expired:
        context.store.count("leases_expired")
        context.event(
            "lease_expired",
            f"lease {lease.lease_id} ended without results; its group is queued again",
            lease.worker_name,
        )
