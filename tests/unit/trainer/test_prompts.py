import threading

import pytest

from hetero_rl.config.tree import Config
from hetero_rl.tasks import TaskItem
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.prompts import PromptFeeder, PromptMaker, groups_ahead
from hetero_rl.wire.columns import int32_view
from hetero_rl.wire.messages import EnqueueReceipt, Purpose


class Items:
    held_out_items = (TaskItem(question="x", payload=b"1", solution=None),) * 2

    def training_item(self, ordinal):
        return TaskItem(question="a" * (ordinal + 1), payload=b"%d" % ordinal, solution=None)


class Encoder:
    def encode(self, question):
        return [ord(letter) for letter in question]


class Queue:
    """A hub that takes as many groups as it has credits."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.ordinals = []

    def enqueue_groups(self, groups):
        new = [group.ordinal for group in groups if group.ordinal not in self.ordinals]
        assert len(new) <= self.credits
        self.ordinals += new
        return EnqueueReceipt(len(new), self.credits)

    @property
    def credits(self):
        return self.capacity - len(self.ordinals)


@pytest.fixture
def maker():
    config = Config.model_validate({"run": {"seed": 3}, "trainer": {"groups_per_step": 2, "group_size": 5}})
    return PromptMaker(Items(), Encoder(), config, (0, 9))


def feeder(maker, queue, **changes):
    settings = {"next_ordinal": 0, "groups_per_step": 2, "total_steps": 5, "ahead": 6} | changes
    patience = Patience(StopSignal(threading.Event()))
    return PromptFeeder(maker, queue, patience, credits=queue.credits, **settings)


def test_a_training_group_follows_from_its_ordinal(maker):
    group = maker.training_group(2)

    assert group == maker.training_group(2)
    assert (group.group_id, group.ordinal, group.purpose) == ("train-00000002", 2, Purpose.TRAIN)
    assert list(int32_view(group.prompt_token_ids)) == [97, 97, 97]
    assert (group.group_size, group.payload) == (5, b"2")
    assert group.sampling.stop_token_ids == (0, 9)
    assert group.sampling.seed != maker.training_group(3).sampling.seed
    assert maker.sampling.seed is None


def test_evaluation_groups_are_greedy_single_and_pinned_to_a_version(maker):
    first, second = maker.evaluation_groups(7)

    assert (first.purpose, first.group_size, first.min_weight_version) == (Purpose.EVALUATION, 1, 7)
    assert first.sampling.temperature == 0
    assert first.group_id != second.group_id
    assert first.group_id not in {group.group_id for group in maker.evaluation_groups(8)}


def test_the_queue_is_filled_ahead_of_the_step(maker):
    queue = Queue(100)
    subject = feeder(maker, queue)

    subject.feed(1)
    assert queue.ordinals == [0, 1, 2, 3, 4, 5]
    subject.feed(1)
    assert queue.ordinals == [0, 1, 2, 3, 4, 5]
    subject.feed(2)
    assert queue.ordinals == [0, 1, 2, 3, 4, 5, 6, 7]


def test_nothing_is_enqueued_beyond_the_last_step(maker):
    queue = Queue(100)
    subject = feeder(maker, queue)

    subject.feed(5)

    assert queue.ordinals == list(range(10))
    assert subject.next_ordinal == 10


def test_credits_bound_what_is_enqueued_and_are_asked_for_again(maker):
    queue = Queue(3)
    subject = feeder(maker, queue)

    subject.feed(1)
    assert queue.ordinals == [0, 1, 2]
    queue.capacity = 5
    subject.feed(1)
    assert queue.ordinals == [0, 1, 2, 3, 4]


def test_a_resumed_run_goes_on_at_the_hubs_ordinal(maker):
    queue = Queue(100)

    feeder(maker, queue, next_ordinal=4).feed(1)

    assert queue.ordinals == [4, 5]


def test_at_least_one_step_is_kept_ahead(maker):
    queue = Queue(100)

    feeder(maker, queue, ahead=1).feed(1)

    assert queue.ordinals == [0, 1]


def test_groups_ahead_follow_from_batch_and_lag_unless_set():
    derived = Config.model_validate({"trainer": {"groups_per_step": 8}, "staleness": {"max_lag": 2}})
    chosen = Config.model_validate({"trainer": {"prefetch_groups": 5}})

    assert groups_ahead(derived) == 32
    assert groups_ahead(chosen) == 5
