"""Groups on their way from the trainer and back: enqueue, take, commit."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from hetero_rl.errors import InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.admission import Candidate, required_step, select_batch
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.damage import generate_again
from hetero_rl.hub.stores.records import GroupRow, GroupState, RunRecord, StepCommit
from hetero_rl.wire.messages import EnqueueReceipt, FinishedGroup, PromptGroup, Purpose, SequenceOutcome
from hetero_rl.wire.validation import check_prompt_group

__all__ = [
    "commit_step",
    "enqueue_groups",
    "read_finished_group",
    "read_finished_groups",
    "step_size",
    "take_batch",
    "take_batch_ahead",
    "take_evaluation",
    "train_credits",
]

_MAX_OPEN_EVALUATION_GROUPS = 65536


def train_credits(context: HubContext, run: RunRecord) -> int:
    """Training groups that the queue takes now: enough for every step that may start, and as much again."""
    request = run.request
    steps = max(context.settings.queue_steps, 2 + request.max_lag) + request.max_lag
    open_groups = len(context.store.unassigned_training_groups())
    return max(0, steps * request.groups_per_step - open_groups)


def enqueue_groups(context: HubContext, trainer_epoch: int, groups: Sequence[PromptGroup]) -> EnqueueReceipt:
    """Puts new groups into the queue; all of them or, when one is refused, none."""
    run = context.trainer_run(trainer_epoch)
    new = [group for group in groups if context.store.group(group.group_id) is None]
    _check_credits(context, run, new)
    ordinal = context.store.next_train_ordinal()
    for group in new:
        check_prompt_group(group, run.request.limits)
        if group.purpose is Purpose.TRAIN:
            if group.ordinal != ordinal:
                raise InvalidMessageError(
                    f"group {group.group_id!r} has ordinal {group.ordinal}, but the next training group has {ordinal}: "
                    "enqueue without gaps"
                )
            ordinal += 1
        context.store.add_group(group)
    if new:
        context.notify(Topic.WORK)
    return EnqueueReceipt(len(new), train_credits(context, run))


def _check_credits(context: HubContext, run: RunRecord, new: Sequence[PromptGroup]) -> None:
    train = sum(group.purpose is Purpose.TRAIN for group in new)
    if train > (credits_left := train_credits(context, run)):
        raise RefusedError(
            f"{train} new training groups, but the queue takes {credits_left} now: wait until a batch was taken",
            "NO_CREDIT",
            {"credits": str(credits_left)},
        )
    if train == len(new):
        return
    open_states = (GroupState.QUEUED, GroupState.LEASED, GroupState.FINISHED)
    waiting = sum(context.store.count_groups(Purpose.EVALUATION, state) for state in open_states)
    if waiting + len(new) - train > _MAX_OPEN_EVALUATION_GROUPS:
        raise RefusedError(
            f"{waiting} evaluation groups wait already: take them before more are enqueued",
            "NO_CREDIT",
            {"credits": "0"},
        )


def take_batch(context: HubContext, trainer_epoch: int, step: int) -> tuple[str, ...] | None:
    """Ids of the groups of a step; None while it is not complete. A step keeps its batch."""
    run = context.trainer_run(trainer_epoch)
    assigned = _assigned(context, run, step) or _assign(context, run, step)
    # Of an older batch, a group whose completions were damaged may be on its way once more.
    if not assigned or any(row.state < GroupState.FINISHED for row in assigned):
        return None
    for row in assigned:
        if row.state is not GroupState.TAKEN:
            context.store.put_group(dataclasses.replace(row, state=GroupState.TAKEN))
    return tuple(row.group_id for row in assigned)


def take_batch_ahead(
    context: HubContext, trainer_epoch: int, step: int, held: Collection[str], at_least: int = 1
) -> tuple[bool, tuple[str, ...]]:
    """Whether the batch of a step is complete, and its groups; before, groups not held that wait for their batch.

    Args:
        context: The hub.
        trainer_epoch: Who is calling.
        step: The step.
        held: Groups that the caller has.
        at_least: Groups that are worth an answer; with fewer and no complete batch, none are named.
    """
    run = context.trainer_run(trainer_epoch)
    if not _assigned(context, run, step):
        # Asked again with every result that arrives: to look at each group would cost more than the result itself.
        finished = context.store.count_groups(Purpose.TRAIN, GroupState.FINISHED)
        if finished < min(run.request.groups_per_step, len(held) + at_least):
            return False, ()
    batch = take_batch(context, trainer_epoch, step)
    if batch is not None:
        return True, batch
    waiting = context.store.unassigned_training_groups()
    ready = (row.group_id for row in waiting if row.state is GroupState.FINISHED)
    return False, tuple(group_id for group_id in ready if group_id not in held)


def _assigned(context: HubContext, run: RunRecord, step: int) -> tuple[GroupRow, ...]:
    """The batch that a step has; empty when it is the next one to get one."""
    if step <= run.committed_step:
        raise InvalidMessageError(f"step {step} is committed: the next one is {run.committed_step + 1}")
    assigned = context.store.groups_of_step(step)
    following = context.store.last_assigned_step() + 1
    if not assigned and step != following:
        raise InvalidMessageError(
            f"step {step} cannot take a batch: the next step without one is {following}"
        )
    return assigned


def _assign(context: HubContext, run: RunRecord, step: int) -> tuple[GroupRow, ...]:
    request = run.request
    rows = {row.group_id: row for row in context.store.unassigned_training_groups()}
    candidates = [_candidate(row, request.groups_per_step, request.max_lag) for row in rows.values()]
    chosen = select_batch(step, request.groups_per_step, request.max_lag, candidates)
    return tuple(dataclasses.replace(rows[group_id], step=step) for group_id in chosen or ())


def _candidate(row: GroupRow, groups_per_step: int, max_lag: int) -> Candidate:
    finished = row.state is GroupState.FINISHED
    bound = max(required_step(row.ordinal, groups_per_step, max_lag), row.admitted_step)
    if finished or 0 <= row.oldest_step < bound:
        bound = row.oldest_step
    return Candidate(row.group_id, row.ordinal, finished=finished, oldest_step=bound)


def take_evaluation(
    context: HubContext, trainer_epoch: int, group_ids: Sequence[str]
) -> tuple[str, ...] | None:
    """The same ids once all groups are finished; None before."""
    run = context.trainer_run(trainer_epoch)
    rows = []
    for group_id in group_ids:
        row = context.store.group(group_id)
        if row is None or row.purpose is not Purpose.EVALUATION:
            raise RefusedError(
                f"evaluation group {group_id!r} was never enqueued", "NOT_FOUND", {"group_id": group_id}
            )
        rows.append(row)
    if any(row.state < GroupState.FINISHED for row in rows):
        return None
    for row in rows:
        if row.state is GroupState.FINISHED:
            taken = dataclasses.replace(row, state=GroupState.TAKEN, step=run.committed_step + 1)
            context.store.put_group(taken)
    return tuple(group_ids)


def read_finished_group(context: HubContext, group_id: str) -> FinishedGroup | None:
    """A finished group with its completions and the steps of the versions that made them.

    None when completions were damaged; the group is then queued once more.
    """
    stored = context.store.batches(group_id)
    row = context.store.group(group_id)
    whole = sum(len(item.batch.sample_indices) for item in stored)
    if row is not None and whole != row.group_size and row.state in {GroupState.FINISHED, GroupState.TAKEN}:
        generate_again(context, row, whole)
        return None
    versions = {span.weight_version for item in stored for span in item.batch.version_spans}
    steps = {}
    for version in sorted(versions):
        published = context.store.version(version)
        if published is not None:
            steps[version] = published.step
    return FinishedGroup(
        group=context.store.prompt_group(group_id),
        batches=tuple(item.batch for item in stored),
        version_steps=steps,
        worker_names=tuple(item.worker_name for item in stored),
        backends=tuple(item.backend for item in stored),
    )


def read_finished_groups(
    context: HubContext, group_ids: Sequence[str], most_bytes: int
) -> tuple[FinishedGroup | None, ...]:
    """The first of these groups, at least one, and no further one once their columns have so many bytes."""
    found: list[FinishedGroup | None] = []
    size = 0
    for group_id in group_ids:
        group = read_finished_group(context, group_id)
        found.append(group)
        size += 0 if group is None else sum(batch.size for batch in group.batches)
        if group is None or size >= most_bytes:
            break
    return tuple(found)


def step_size(context: HubContext, trainer_epoch: int, step: int) -> tuple[int, int] | None:
    """Sequences and tokens of the batch of a step; None when the step is committed."""
    run = context.trainer_run(trainer_epoch)
    if step <= run.committed_step:
        return None
    lengths = [
        sequence.length
        for row in context.store.groups_of_step(step)
        for sequence in context.store.sequences(row.group_id)
    ]
    return len(lengths), sum(lengths)


def commit_step(
    context: HubContext,
    trainer_epoch: int,
    step: int,
    outcomes: Sequence[SequenceOutcome],
    log_probs: bytes | None,
) -> bool:
    """Marks a step's groups as trained, in one transaction with their outcomes; True when it was known already."""
    run = context.trainer_run(trainer_epoch)
    if step <= run.committed_step:
        return True
    rows = context.store.groups_of_step(step)
    if step != run.committed_step + 1 or any(row.state is not GroupState.TAKEN for row in rows) or not rows:
        raise InvalidMessageError(
            f"step {step} cannot be committed: take its batch first; the next step is {run.committed_step + 1}"
        )
    _check_outcomes(context, rows, outcomes, log_probs)
    for row in rows:
        context.store.put_group(dataclasses.replace(row, state=GroupState.COMMITTED))
    context.store.add_commit(
        StepCommit(
            step=step,
            trainer_epoch=trainer_epoch,
            committed_at=context.clock.wall(),
            outcomes=tuple(outcomes),
            log_probs=log_probs,
        )
    )
    context.store.put_run(dataclasses.replace(run, committed_step=step))
    return False


def _check_outcomes(
    context: HubContext,
    rows: Sequence[GroupRow],
    outcomes: Sequence[SequenceOutcome],
    log_probs: bytes | None,
) -> None:
    lengths = {
        (sequence.group_id, sequence.sample_index): sequence.length
        for row in rows
        for sequence in context.store.sequences(row.group_id)
    }
    named = [(outcome.group_id, outcome.sample_index) for outcome in outcomes]
    if len(named) != len(lengths) or set(named) != lengths.keys():
        odd = (
            sorted(set(named) ^ lengths.keys())[:3]
            or sorted({key for key in named if named.count(key) > 1})[:3]
        )
        raise InvalidMessageError(
            f"outcomes must name each of the step's {len(lengths)} sequences once; {len(named)} given, such as {odd} wrong"
        )
    for outcome in outcomes:
        if any(map(math.isnan, _numbers(outcome))):
            raise InvalidMessageError(
                f"the outcome of sample {outcome.sample_index} of group {outcome.group_id!r} holds NaN, which says nothing",
                "CommitStepRequest.outcomes",
            )
    if log_probs is not None and len(log_probs) != 4 * sum(lengths.values()):
        raise InvalidMessageError(
            f"log_probs has {len(log_probs) // 4} elements, but the step has {sum(lengths.values())} tokens"
        )


def _numbers(outcome: SequenceOutcome) -> tuple[float, ...]:
    """Every float of an outcome; named one by one, as hundreds of them come with each step."""
    return (
        outcome.reward,
        outcome.advantage,
        outcome.log_importance_ratio,
        outcome.coefficient,
        outcome.mean_absolute_gap,
        outcome.max_absolute_gap,
        outcome.staleness_log_ratio or 0.0,
        outcome.chip_log_ratio or 0.0,
    )
