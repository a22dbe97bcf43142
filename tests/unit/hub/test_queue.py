"""Groups on their way from the trainer and back."""

import dataclasses

import pytest

from hetero_rl.errors import FencedError, InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.fleet import run_status
from hetero_rl.hub.handlers.queue import (
    commit_step,
    enqueue_groups,
    read_finished_group,
    read_finished_groups,
    take_batch,
    take_batch_ahead,
    take_evaluation,
)
from hetero_rl.hub.handlers.runs import open_run
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.messages import Purpose, SequenceOutcome

NUMBERS = (float, "float", float | None, "float | None")


def outcomes(messages, *group_ids):
    return [messages.outcome(group_id, index) for group_id in group_ids for index in (0, 1)]


class TestEnqueue:
    def test_known_groups_are_not_queued_again(self, hub):
        hub.open()
        assert hub.enqueue(0, 1).accepted == 2
        assert hub.enqueue(0, 1, 2).accepted == 1
        assert hub(run_status).training.queued == 3

    def test_credits_shrink_as_groups_wait(self, hub):
        # B = 2, max_lag = 1: room for (2 + 1 + 1) steps.
        hub.open()
        assert hub.enqueue().credits == 8
        assert hub.enqueue(0, 1, 2).credits == 5

    def test_more_than_the_credits_is_refused_and_nothing_of_it_is_queued(self, hub):
        hub.open()
        with pytest.raises(RefusedError) as caught:
            hub.enqueue(*range(9))
        assert caught.value.reason == "NO_CREDIT"
        assert caught.value.details == {"credits": "8"}
        assert hub(run_status).training.queued == 0

    def test_ordinals_have_no_gaps(self, hub):
        hub.open()
        hub.enqueue(0)
        with pytest.raises(InvalidMessageError, match="ordinal 2, but the next training group has 1"):
            hub.enqueue(2)

    def test_evaluation_groups_need_no_order_and_no_credits(self, hub):
        hub.open()
        receipt = hub.enqueue(7, 3, purpose=Purpose.EVALUATION)
        assert (receipt.accepted, receipt.credits) == (2, 8)

    def test_a_group_beyond_the_limits_is_refused(self, hub):
        hub.open()
        with pytest.raises(InvalidMessageError, match="group_size"):
            hub.enqueue(0, group_size=5)

    def test_only_the_newest_trainer_may(self, hub, messages):
        hub.open()
        hub(open_run, messages.run_request())
        with pytest.raises(FencedError, match="trainer epoch 1"):
            hub(enqueue_groups, 1, [messages.group(0)])

    def test_nothing_is_queued_before_the_run_is_open(self, hub, messages):
        with pytest.raises(RefusedError) as caught:
            hub(enqueue_groups, 1, [messages.group(0)])
        assert caught.value.reason == "RUN_NOT_OPEN"


class TestTakeBatch:
    def test_a_step_keeps_its_batch(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1, 2, 3)
        hub.generate(worker)
        assert hub(take_batch, 1, 1) == ("g0", "g1")
        assert hub(take_batch, 1, 1) == ("g0", "g1")
        assert hub(take_batch, 1, 2) == ("g2", "g3")

    def test_an_incomplete_batch_is_none(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1)
        hub.generate(worker, free=2)
        assert hub(take_batch, 1, 1) is None

    def test_steps_are_taken_in_order(self, hub):
        hub.open()
        with pytest.raises(InvalidMessageError, match="next step without one is 1"):
            hub(take_batch, 1, 3)

    def test_a_committed_step_is_not_handed_out_again(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1)
        hub.generate(worker)
        hub.train(1)
        with pytest.raises(InvalidMessageError, match="step 1 is committed"):
            hub(take_batch, 1, 1)

    def test_a_finished_group_carries_everything(self, hub, messages):
        worker = hub.open()
        hub.enqueue(0, 1)
        hub.generate(worker)
        group = hub(read_finished_group, "g0")
        assert group.group == messages.group(0)
        assert group.version_steps == {1: 0}
        assert group.worker_names == ("w1",)
        assert group.backends == ("cpu",)
        assert group.batches[0].sample_indices == (0, 1)

    def test_groups_ahead_of_their_batch_are_named_once_there_are_enough(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1)
        hub.generate(worker, free=2)
        assert hub(take_batch_ahead, 1, 1, (), 2) == (False, ())
        assert hub(take_batch_ahead, 1, 1, (), 1) == (False, ("g0",))
        assert hub(take_batch_ahead, 1, 1, ("g0",), 1) == (False, ())
        hub.generate(worker)
        assert hub(take_batch_ahead, 1, 1, (), 9) == (True, ("g0", "g1"))
        assert hub(take_batch_ahead, 1, 1, ("g0",), 9) == (True, ("g0", "g1"))

    def test_groups_ahead_are_refused_for_a_step_that_is_not_next(self, hub):
        hub.open()
        with pytest.raises(InvalidMessageError, match="next step without one is 1"):
            hub(take_batch_ahead, 1, 3, (), 2)

    def test_groups_are_read_together_up_to_a_size(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1)
        hub.generate(worker)
        both = tuple(hub(read_finished_group, group_id) for group_id in ("g0", "g1"))
        size = both[0].batches[0].size
        assert hub(read_finished_groups, ("g0", "g1"), size) == both[:1]
        assert hub(read_finished_groups, ("g0", "g1"), size + 1) == both


class TestTakeEvaluation:
    def test_all_groups_or_none(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1, purpose=Purpose.EVALUATION)
        hub.generate(worker, free=2)
        assert hub(take_evaluation, 1, ["e0", "e1"]) is None
        hub.generate(worker)
        assert hub(take_evaluation, 1, ["e1", "e0"]) == ("e1", "e0")
        assert hub(take_evaluation, 1, ["e0"]) == ("e0",)
        assert hub(run_status).evaluation.taken == 2

    def test_a_group_that_was_never_enqueued_is_named(self, hub):
        hub.open()
        hub.enqueue(0)
        for group_id in ("e9", "g0"):
            with pytest.raises(RefusedError, match=group_id):
                hub(take_evaluation, 1, [group_id])


class TestCommitStep:
    @pytest.fixture
    def taken(self, hub):
        worker = hub.open()
        hub.enqueue(0, 1)
        hub.generate(worker)
        hub(take_batch, 1, 1)
        return hub

    def test_a_commit_is_remembered_with_its_outcomes(self, taken, messages):
        log_probs = float32_column([-1.0] * 8)
        assert taken(commit_step, 1, 1, outcomes(messages, "g0", "g1"), log_probs) is False
        assert taken.store.commit_of(1).outcomes == tuple(outcomes(messages, "g0", "g1"))
        assert taken.store.commit_of(1).log_probs == log_probs
        status = taken(run_status)
        assert (status.step, status.training.committed) == (1, 2)

    def test_a_repeated_commit_changes_nothing(self, taken, messages):
        taken(commit_step, 1, 1, outcomes(messages, "g0", "g1"), None)
        assert taken(commit_step, 1, 1, (), None) is True
        assert len(taken.store.commit_of(1).outcomes) == 4

    def test_a_step_without_batch_cannot_be_committed(self, taken, messages):
        with pytest.raises(InvalidMessageError, match="step 2 cannot be committed"):
            taken(commit_step, 1, 2, (), None)

    @pytest.mark.parametrize("named", [["g0"], ["g0", "g0"], ["g0", "g1", "g1"], ["g0", "g9"]])
    def test_every_sequence_has_one_outcome(self, taken, messages, named):
        with pytest.raises(InvalidMessageError, match="4 sequences"):
            taken(commit_step, 1, 1, outcomes(messages, *named), None)
        assert taken(run_status).step == 0

    def test_log_probs_have_one_element_for_each_token(self, taken, messages):
        with pytest.raises(InvalidMessageError, match="7 elements, but the step has 8 tokens"):
            taken(commit_step, 1, 1, outcomes(messages, "g0", "g1"), float32_column([-1.0] * 7))

    @pytest.mark.parametrize(
        "name", [field.name for field in dataclasses.fields(SequenceOutcome) if field.type in NUMBERS]
    )
    def test_nan_is_no_outcome(self, taken, messages, name):
        rows = outcomes(messages, "g0", "g1")
        rows[2] = messages.outcome("g1", 0, **{name: float("nan")})
        with pytest.raises(InvalidMessageError, match="sample 0 of group 'g1' holds NaN"):
            taken(commit_step, 1, 1, rows, None)
