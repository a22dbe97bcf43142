"""What is kept of old steps: every scalar, and the tokens of a uniform sample of fixed size.

The reservoir holds the sequences with the lowest hash of (run, group, sample). Such a set is a uniform sample of all
sequences seen, needs no random state, and comes out the same when a pruning is interrupted and repeated.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from hetero_rl.errors import InvalidMessageError
from hetero_rl.hub.handlers.context import HubContext
from hetero_rl.hub.handlers.versions import prune_versions
from hetero_rl.hub.stores.records import RetainedSequence, StepCommit, StoredBatch
from hetero_rl.wire.messages import Purpose

__all__ = ["commit_checkpoint", "prune_some", "rank", "slice_batch"]

_GROUPS_PER_TRANSACTION = 32


def rank(run_id: str, group_id: str, sample_index: int) -> int:
    """Place of a sequence in the order of the reservoir: 62 bits of a hash."""
    digest = hashlib.sha256(f"{run_id}\n{group_id}\n{sample_index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def commit_checkpoint(
    context: HubContext, trainer_epoch: int, step: int, oldest_kept_step: int
) -> tuple[str, ...]:
    """Notes a durable checkpoint; returns digests of weight blobs to delete. Call `prune_some` until it returns False."""
    run = context.trainer_run(trainer_epoch)
    if not oldest_kept_step <= step <= run.committed_step:
        raise InvalidMessageError(
            f"a checkpoint of step {step} with oldest_kept_step {oldest_kept_step} does not fit {run.committed_step} "
            "committed steps"
        )
    pruned_step = max(run.pruned_step, oldest_kept_step)
    context.store.put_run(dataclasses.replace(run, pruned_step=pruned_step))
    context.event("checkpoint", f"step {step}; steps up to {pruned_step} are pruned")
    return prune_versions(context, {oldest_kept_step, step})


def prune_some(context: HubContext) -> bool:
    """Prunes a few groups behind the oldest checkpoint; False when none is left."""
    run = context.store.run()
    if run is None:
        return False
    prunable = context.store.prunable_groups(run.pruned_step, run.pruned_step)
    batch = [row for group_id in prunable[:_GROUPS_PER_TRANSACTION] if (row := context.store.group(group_id))]
    trained = [row for row in batch if row.purpose is Purpose.TRAIN]
    for step in sorted({row.step for row in trained}):
        group_ids = [row.group_id for row in trained if row.step == step]
        _retain(context, run.request.run_id, context.store.commit_of(step), group_ids)
    for row in batch:
        context.store.prune_group(row.group_id)
    context.store.trim_retained(context.settings.retained_sequences)
    if len(prunable) > _GROUPS_PER_TRANSACTION:
        return True
    context.store.prune_commit_log_probs(run.pruned_step)
    return False


def _retain(context: HubContext, run_id: str, commit: StepCommit | None, group_ids: Sequence[str]) -> None:
    """Puts those sequences of some groups of one step into the reservoir that are low enough for it."""
    size = context.settings.retained_sequences
    if not size:
        return
    held = context.store.retained_ranks()
    highest = held[size - 1] if len(held) >= size else None
    trainer_log_probs = _trainer_log_probs(context, commit)
    for group_id in group_ids:
        ranks = [rank(run_id, group_id, row.sample_index) for row in context.store.sequences(group_id)]
        if highest is not None and min(ranks, default=highest) >= highest:
            continue
        for stored in context.store.batches(group_id):
            for sequence in slice_batch(stored, run_id, trainer_log_probs):
                if highest is None or sequence.rank < highest:
                    context.store.retain(sequence)


def _trainer_log_probs(context: HubContext, commit: StepCommit | None) -> Mapping[tuple[str, int], bytes]:
    """The trainer's log-probabilities of each sequence of a step; empty when the run does not keep them."""
    if commit is None or commit.log_probs is None:
        return {}
    lengths = {
        (row.group_id, row.sample_index): row.length
        for group_id in {outcome.group_id for outcome in commit.outcomes}
        for row in context.store.sequences(group_id)
    }
    if not all((outcome.group_id, outcome.sample_index) in lengths for outcome in commit.outcomes):
        return {}  # a row was damaged: what belongs to which sequence is no longer known
    found, start = {}, 0
    for outcome in commit.outcomes:
        key = (outcome.group_id, outcome.sample_index)
        end = start + 4 * lengths[key]
        found[key], start = commit.log_probs[start:end], end
    return found


def slice_batch(
    stored: StoredBatch, run_id: str, trainer_log_probs: Mapping[tuple[str, int], bytes]
) -> Iterator[RetainedSequence]:
    """The sequences of a batch with their own parts of its columns."""
    batch, start = stored.batch, 0
    for sample_index, length in zip(batch.sample_indices, batch.lengths, strict=True):
        end = start + length
        yield RetainedSequence(
            rank=rank(run_id, batch.group_id, sample_index),
            group_id=batch.group_id,
            sample_index=sample_index,
            token_ids=batch.token_ids[4 * start : 4 * end],
            log_probs=None if batch.log_probs is None else batch.log_probs[4 * start : 4 * end],
            action_mask=None if batch.action_mask is None else batch.action_mask[start:end],
            trainer_log_probs=trainer_log_probs.get((batch.group_id, sample_index)),
        )
        start = end
