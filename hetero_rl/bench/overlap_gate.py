"""The least wall time that the staleness gate leaves to a schedule, by discrete events: no threads, no clock, no overhead.

A group that takes longer than max_lag steps holds up the step that is the last to train it, however good the overlap, because
what began under the weights of step w is trained in step w + max_lag + 1 at the latest. With few groups in a step, most
steps have such a group. This is what a measured run is held against beside the plain bound.
"""

import dataclasses
import heapq
from collections.abc import Sequence

from hetero_rl.hub.handlers.admission import Candidate, required_step, select_batch

__all__ = ["least_wall", "taken_groups"]

_TRAINED = -1


def taken_groups(
    step: int, size: int, max_lag: int, started: dict[int, int], finished: set[int], taken: set[int]
) -> tuple[int, ...] | None:
    """The groups that the hub gives to a step; None while it must wait.

    Args:
        step: The step, from 1.
        size: Groups of a step.
        max_lag: Largest lag in steps.
        started: Steps in the weights under which each group was started.
        finished: Groups that are finished.
        taken: Groups that steps before have taken.
    """
    known = range((step + max_lag) * size)
    candidates = [
        Candidate(
            str(i), i, finished=i in finished, oldest_step=started.get(i, required_step(i, size, max_lag))
        )
        for i in known
        if i not in taken
    ]
    chosen = select_batch(step, size, max_lag, candidates)
    return None if chosen is None else tuple(int(name) for name in chosen)


@dataclasses.dataclass(slots=True)
class _State:
    """Where a schedule is."""

    free: int
    next_group: int = 0
    applied: int = 0
    wanted: int = 1
    """The step whose batch is to be taken next; one is taken ahead of the one that is trained."""
    training: bool = False
    ready: bool = False
    started: dict[int, int] = dataclasses.field(default_factory=dict)
    finished: set[int] = dataclasses.field(default_factory=set)
    taken: set[int] = dataclasses.field(default_factory=set)
    events: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    """Time and group, or `_TRAINED`."""


def least_wall(
    group_seconds: Sequence[float], *, slots: int, groups_per_step: int, step_seconds: float, max_lag: int
) -> float:
    """Seconds from the first weights to the last step, when nothing but the gate, the slots and the steps takes time.

    Args:
        group_seconds: Generation time of each group, in order.
        slots: Groups that are generated at once.
        groups_per_step: Groups of a step.
        step_seconds: Time of a step.
        max_lag: Largest lag in steps.
    """
    steps = len(group_seconds) // groups_per_step
    state, now = _State(free=slots), 0.0
    _start(state, group_seconds, now, groups_per_step, max_lag)
    while state.applied < steps:
        now, what = heapq.heappop(state.events)
        if what == _TRAINED:
            state.applied, state.training = state.applied + 1, False
        else:
            state.finished.add(what)
            state.free += 1
        _start(state, group_seconds, now, groups_per_step, max_lag)
        _take(state, steps, groups_per_step, max_lag)
        if state.ready and not state.training:
            state.training, state.ready = True, False
            heapq.heappush(state.events, (now + step_seconds, _TRAINED))
            _take(state, steps, groups_per_step, max_lag)
    return now


def _start(state: _State, seconds: Sequence[float], now: float, size: int, max_lag: int) -> None:
    while (
        state.free
        and state.next_group < len(seconds)
        and required_step(state.next_group, size, max_lag) <= state.applied
    ):
        group = state.next_group
        state.started[group] = state.applied
        heapq.heappush(state.events, (now + seconds[group], group))
        state.next_group, state.free = group + 1, state.free - 1


def _take(state: _State, steps: int, size: int, max_lag: int) -> None:
    if state.ready or state.wanted > steps:
        return
    groups = taken_groups(state.wanted, size, max_lag, state.started, state.finished, state.taken)
    if groups is not None:
        state.taken.update(groups)
        state.wanted, state.ready = state.wanted + 1, True
