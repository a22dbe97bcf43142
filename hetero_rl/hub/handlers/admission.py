"""Who may start a training group, and which groups make up a step: pure functions that bound the lag.

Words. B groups make one optimizer step. Step s is trained when s - 1 steps are applied. The lag of a token trained in step s
is |(s - 1) - w|, w being the optimizer steps in the weights that sampled it.

Starting (`required_step`): in order of ordinals, group i belongs to step floor(i / B) + 1. Whoever starts it needs weights of
at least floor(i / B) - max_lag steps, so its lag in that step is at most max_lag.

Taking (`select_batch`): a step need not keep the order of ordinals, which would let one slow group hold up all the others.
Each group has a deadline, the last step in which its lag is still allowed: w + max_lag + 1. A step takes the B finished
groups with the earliest deadlines if what is left can still be trained in time, B groups per step, counting groups that
run, wait, or are not enqueued yet by the earliest deadline that they can get. Otherwise it waits. By the usual exchange
argument for earliest-deadline-first schedules, a feasible choice exists whenever any does, and taking the order of ordinals
is feasible from the start: nothing deadlocks, nothing expires, nothing is lost.
"""

import dataclasses
from collections.abc import Sequence

__all__ = ["Candidate", "deadline", "lag", "required_step", "select_batch"]


def required_step(ordinal: int, groups_per_step: int, max_lag: int) -> int:
    """Fewest optimizer steps in the weights under which training group `ordinal` may start."""
    return max(0, ordinal // groups_per_step - max_lag)


def lag(step: int, version_step: int) -> int:
    """Lag in optimizer steps of a token from weights with `version_step` steps, trained in step `step`."""
    return abs((step - 1) - version_step)


def deadline(version_step: int, max_lag: int) -> int:
    """Last step in which tokens from weights with `version_step` steps may be trained."""
    return version_step + max_lag + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A training group that no step has taken.

    Example: ``Candidate("g7", ordinal=7, finished=True, oldest_step=3)``
    """

    group_id: str
    ordinal: int
    finished: bool
    oldest_step: int
    """Finished: lowest optimizer steps among the weights of its tokens. Else: a lower bound of what that will be."""


def select_batch(
    step: int, groups_per_step: int, max_lag: int, candidates: Sequence[Candidate]
) -> tuple[str, ...] | None:
    """The groups that step `step` trains; None when it must wait for more to finish.

    Args:
        step: The step, from 1; every earlier one has taken its batch.
        groups_per_step: B, at least 1.
        max_lag: Largest lag allowed, in optimizer steps.
        candidates: Every enqueued training group that no step has taken, in any order.

    Returns:
        B group ids in ascending order of ordinal, or None.
    """
    by_deadline = sorted(candidates, key=lambda group: (group.oldest_step, group.ordinal))
    chosen = [group for group in by_deadline if group.finished][:groups_per_step]
    if len(chosen) < groups_per_step:
        return None
    taken = {group.group_id for group in chosen}
    deadlines = [deadline(group.oldest_step, max_lag) for group in by_deadline if group.group_id not in taken]
    enqueued = step * groups_per_step + len(deadlines)
    if not _feasible(step, groups_per_step, deadlines, enqueued):
        return None
    return tuple(group.group_id for group in sorted(chosen, key=lambda group: group.ordinal))


def _feasible(step: int, groups_per_step: int, deadlines: Sequence[int], enqueued: int) -> bool:
    """Whether steps after `step` can train groups with these ascending deadlines and all that are yet to be enqueued.

    Group i that is yet to be enqueued, i >= `enqueued`, gets a deadline of floor(i / B) + 1 at the earliest, so d * B minus
    `enqueued` of them are due by step d. Between two deadlines the capacity grows at least as fast as those.
    """
    due = 0
    for position, due_step in enumerate(deadlines):
        due = position + 1
        not_enqueued = max(0, due_step * groups_per_step - enqueued)
        if due + not_enqueued > (due_step - step) * groups_per_step:
            return False
    return True
