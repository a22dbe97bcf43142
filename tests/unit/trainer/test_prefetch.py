import threading

import pytest

from hetero_rl.errors import ProtocolError
from hetero_rl.tasks import Grade, PendingGrades
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.prefetch import BatchSource
from hetero_rl.trainer.state import ConsumedGroups
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.wire.ports import BatchProgress


class Time:
    """Stands still but where something takes time."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Hub:
    """Answers in the order given, after one second each, and keeps what it was asked and what was graded by then."""

    def __init__(self, graders, *answers):
        self.graders = graders
        self.answers = list(answers)
        self.asked = []
        self.graded = []

    def take_batch_ahead(self, step, wait, *, held, at_least):
        self.graders.time.now += 1.0
        self.asked.append((tuple(sorted(held)), at_least))
        self.graded.append(len(self.graders.begun))
        return self.answers.pop(0)


class Graders:
    """The reward of a completion is the length of its text; waiting for those of a group takes two seconds."""

    def __init__(self, time):
        self.time = time
        self.begun = []

    def submit(self, requests):
        self.begun.append([request.completion for request in requests])
        return PendingGrades((Waited(self.time, [Grade(float(len(text))) for text in self.begun[-1]]),))


class Waited:
    def __init__(self, time, grades):
        self.time = time
        self.grades = grades

    def result(self):
        self.time.now += 2.0
        return self.grades


class Text:
    def decode(self, ids):
        return "x" * len(ids)


class NoPrompts:
    def feed(self, step):
        pass


@pytest.fixture
def graders():
    return Graders(Time())


@pytest.fixture
def clock(graders):
    return WaitClock(graders.time)


@pytest.fixture
def make_source(graders, clock):
    sources = []

    def make(hub, groups_per_step=2):
        stop = StopSignal(threading.Event())
        source = BatchSource(
            hub,
            NoPrompts(),
            graders,
            Text(),
            groups_per_step=groups_per_step,
            consumed=ConsumedGroups(),
            max_lag=2,
            vocabulary_size=12,
            patience=Patience(stop),
            stop=stop,
            clock=clock,
        )
        sources.append(source)
        return source

    yield make
    for source in sources:
        source.close()


@pytest.fixture
def groups(make_group):
    return [make_group(ordinal, [5], [[7] * (ordinal + 1), [2]]) for ordinal in range(3)]


def names(*ordinals):
    return tuple(f"train-{ordinal:08d}" for ordinal in ordinals)


def fetch(source, step):
    source.start(step)
    return source.take()


def test_groups_are_graded_before_their_batch_is_complete_and_stand_in_its_order(
    graders, groups, make_source
):
    hub = Hub(
        graders,
        BatchProgress(None, (groups[2], groups[0])),
        BatchProgress(None, ()),
        BatchProgress(names(0, 1), (groups[1],)),
    )

    batch = fetch(make_source(hub), 1)

    assert hub.graded == [0, 2, 2]
    assert [held for held, _ in hub.asked] == [(), names(0, 2), names(0, 2)]
    assert batch.group_ids == names(0, 1)
    assert batch.rewards.tolist() == [1.0, 1.0, 2.0, 1.0]


def test_a_group_that_came_ahead_is_graded_once_and_kept_for_the_step_that_takes_it(
    graders, groups, make_source
):
    hub = Hub(
        graders,
        BatchProgress(None, (groups[1], groups[2])),
        BatchProgress(names(0), (groups[0],)),
        BatchProgress(names(1, 2), (groups[2],)),
    )
    source = make_source(hub)

    first, second = fetch(source, 1), fetch(source, 2)

    assert (first.group_ids, second.group_ids) == (names(0), names(1, 2))
    assert hub.asked[-1][0] == names(1, 2)
    assert graders.begun == [["xx", "x"], ["xxx", "x"], ["x", "x"]]


def test_answers_are_few_at_first_and_come_group_by_group_towards_the_end(graders, make_group, make_source):
    groups = [make_group(ordinal, [5], [[2]]) for ordinal in range(32)]
    hub = Hub(
        graders,
        BatchProgress(None, tuple(groups[:8])),
        BatchProgress(None, tuple(groups[8:20])),
        BatchProgress(None, tuple(groups[20:31])),
        BatchProgress(names(*range(32)), (groups[31],)),
    )

    fetch(make_source(hub, groups_per_step=32), 1)

    assert [at_least for _, at_least in hub.asked] == [4, 3, 1, 1]


def test_only_grading_that_the_batch_waits_for_counts_as_a_wait_for_grading(
    graders, groups, make_source, clock
):
    hub = Hub(graders, BatchProgress(None, (groups[0],)), BatchProgress(names(0, 1), (groups[1],)))
    source = make_source(hub)

    # Two answers of a second each; then two groups whose rewards take two seconds each.
    with clock.waiting_for_batch():
        source._fetch(1)

    waited = clock.take()
    assert waited["data"] == pytest.approx(2.0)
    assert waited["grading"] == pytest.approx(4.0)


def test_a_batch_that_names_a_group_twice_is_refused(graders, groups, make_source):
    source = make_source(Hub(graders, BatchProgress(names(0, 0), (groups[0],))))

    with pytest.raises(ProtocolError, match=r"training groups \[0, 0\] again for step 1"):
        fetch(source, 1)
