"""The staleness rules, by hand and by random schedules."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_rl.hub.handlers.admission import Candidate, deadline, lag, required_step, select_batch


def finished(ordinal, oldest_step=0):
    return Candidate(f"g{ordinal}", ordinal, finished=True, oldest_step=oldest_step)


def running(ordinal, oldest_step=0):
    return Candidate(f"g{ordinal}", ordinal, finished=False, oldest_step=oldest_step)


def test_on_policy_data_has_lag_zero():
    # Step 5 is trained when 4 steps are applied; weights with 4 steps are the current ones.
    assert lag(step=5, version_step=4) == 0
    assert lag(step=5, version_step=2) == 2


def test_tokens_from_weights_of_step_3_are_trained_by_step_6_under_a_lag_of_2():
    assert deadline(3, max_lag=2) == 6
    assert lag(6, 3) == 2


def test_group_i_starts_at_most_max_lag_steps_before_its_own():
    # B = 4: groups 0..3 belong to step 1, 4..7 to step 2, 12..15 to step 4.
    assert [required_step(ordinal, 4, max_lag=1) for ordinal in (0, 3, 4, 8, 12)] == [0, 0, 0, 1, 2]
    assert required_step(12, 4, max_lag=0) == 3


def test_a_step_takes_the_oldest_finished_groups():
    candidates = [finished(3), finished(0), finished(2), finished(1)]
    assert select_batch(1, 2, 1, candidates) == ("g0", "g1")


def test_too_few_finished_groups_make_no_batch():
    assert select_batch(1, 2, 1, [finished(0), running(1)]) is None


def test_a_slow_group_is_overtaken_while_its_deadline_allows():
    # g1 began under weights of step 0; with max_lag 2 it may be trained as late as step 3.
    candidates = [finished(0), running(1), finished(2), running(3), running(4), running(5)]
    assert select_batch(1, 2, 2, candidates) == ("g0", "g2")


def test_a_slow_group_that_would_miss_its_deadline_is_waited_for():
    # max_lag 0: everything of step 1 must be trained in step 1.
    candidates = [finished(0), running(1), finished(2, 0)]
    assert select_batch(1, 2, 0, candidates) is None


def test_a_group_whose_deadline_is_now_goes_first():
    # Step 2, max_lag 1: g0 from weights of step 0 must be trained now, g2 and g3 may wait.
    candidates = [finished(2, 1), finished(3, 1), finished(0, 0)]
    assert select_batch(2, 2, 1, candidates) == ("g0", "g2")


def test_groups_yet_to_be_enqueued_keep_their_places():
    # Taking g2 and g3 of step 2 in step 1 leaves g0 and g1 for step 2, but g4 and g5 are due by step 3 at the latest: fits.
    # With max_lag 0 nothing fits but the order of ordinals.
    candidates = [running(0), running(1), finished(2), finished(3)]
    assert select_batch(1, 2, 1, candidates) == ("g2", "g3")
    assert select_batch(1, 2, 0, candidates) is None


@dataclasses.dataclass
class Group:
    ordinal: int
    state: str = "queued"
    floor: int = -1
    oldest: int = -1


class Schedule:
    """A trainer and workers that do what a list of random numbers says, under the two rules."""

    def __init__(self, groups_per_step, max_lag, steps, ahead):
        self.groups_per_step, self.max_lag, self.steps, self.ahead = groups_per_step, max_lag, steps, ahead
        self.groups = []
        self.applied = 0
        self.taken = []

    def run(self, numbers):
        for number in numbers:
            self.enqueue()
            kinds = [kind for kind in self.kinds() if kind]
            if not kinds:
                break
            actions = kinds[number % len(kinds)]
            actions[number // 8 % len(actions)]()
        while self.applied < self.steps:
            self.enqueue()
            while starts := self.starts():
                starts[0]()
            for group in self.of("running"):
                self.finish(group)
            applied = self.applied
            self.take()
            assert self.applied == applied + 1, "everything that may start is finished, and yet no batch"

    def enqueue(self):
        total = min(self.steps, self.applied + self.ahead) * self.groups_per_step
        self.groups += [Group(ordinal) for ordinal in range(len(self.groups), total)]

    def of(self, state):
        return [group for group in self.groups if group.state == state]

    def required(self, group):
        return max(required_step(group.ordinal, self.groups_per_step, self.max_lag), group.floor)

    def starts(self):
        """The first queued group under each weight version that may start it."""
        queued = self.of("queued")[:1]
        return [
            lambda group=group, step=step: self.start(group, step)
            for group in queued
            for step in range(self.required(group), self.applied + 1)
        ]

    def kinds(self):
        """What can happen next, by kind."""
        running_groups = self.of("running")
        finishing = [lambda group=group: self.finish(group) for group in running_groups]
        losing = [lambda group=group: self.lose(group) for group in running_groups]
        taking = [self.take] if self.applied < self.steps else []
        # Losing a lease is rarer than the rest, or nothing would ever finish.
        return [self.starts(), finishing, taking, self.starts(), finishing, taking, losing]

    def start(self, group, step):
        group.state, group.oldest = "running", step
        group.floor = max(group.floor, step)

    def finish(self, group):
        group.state = "finished"

    def lose(self, group):
        group.state, group.oldest = "queued", -1

    def take(self):
        step = self.applied + 1
        candidates = [
            Candidate(
                str(group.ordinal),
                group.ordinal,
                finished=group.state == "finished",
                oldest_step=group.oldest if group.state == "finished" else self.required(group),
            )
            for group in self.groups
            if group.state != "taken"
        ]
        batch = select_batch(step, self.groups_per_step, self.max_lag, candidates)
        if batch is None:
            return
        assert len(batch) == self.groups_per_step
        for group_id in batch:
            group = self.groups[int(group_id)]
            assert group.state == "finished"
            assert lag(step, group.oldest) <= self.max_lag
            group.state = "taken"
            self.taken.append(group.ordinal)
        self.applied = step


@settings(max_examples=150, deadline=None)
@given(
    groups_per_step=st.integers(1, 4),
    max_lag=st.integers(0, 3),
    steps=st.integers(1, 6),
    ahead=st.integers(1, 5),
    numbers=st.lists(st.integers(0, 10000), min_size=20, max_size=120),
)
def test_no_schedule_exceeds_the_lag_or_deadlocks_or_loses_a_group(
    groups_per_step, max_lag, steps, ahead, numbers
):
    schedule = Schedule(groups_per_step, max_lag, steps, ahead)
    schedule.run(numbers)
    assert sorted(schedule.taken) == list(range(steps * groups_per_step))
