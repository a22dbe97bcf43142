"""Results, and what is kept of them."""

import dataclasses

import pytest

from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.records import (
    GroupState,
    RetainedSequence,
    SubmissionId,
)
from hetero_rl.wire.columns import UInt8Bytes, int32_column
from hetero_rl.wire.messages import (
    Purpose,
    RoutedExperts,
)


class TestResults:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"log_probs": None},
            {"action_mask": UInt8Bytes(b"\x01\x00\x01")},
            {"routed_experts": RoutedExperts(expert_ids=int32_column([1, 2, 3]), layers=1, top_k=1)},
        ],
    )
    def test_a_batch_comes_back_as_it_was_submitted(self, store, changes, rows):
        store.add_group(rows.prompt())
        rows.submit(store, batch=rows.trajectories(**changes))
        (stored,) = store.batches("g0")
        assert stored.batch == rows.trajectories(**changes)
        assert (stored.worker_name, stored.backend) == ("w1", "cpu")

    def test_submissions_are_remembered_by_identity(self, store, rows):
        store.add_group(rows.prompt())
        key = rows.submit(store)
        assert store.has_submission(key)
        assert not store.has_submission(dataclasses.replace(key, sequence=2))
        assert not store.has_submission(dataclasses.replace(key, worker_epoch=2))

    def test_a_submission_is_not_stored_twice(self, store, rows):
        store.add_group(rows.prompt())
        rows.submit(store)
        with pytest.raises(ConflictError), store.nested():
            rows.submit(store)
        assert len(store.batches("g0")) == 1

    def test_a_sample_is_not_stored_twice(self, store, rows):
        store.add_group(rows.prompt())
        rows.submit(store, 1)
        with pytest.raises(ConflictError), store.nested():
            rows.submit(store, 2)

    def test_scalars_and_indices_are_kept_by_group(self, store, rows):
        store.add_group(rows.prompt())
        rows.submit(store)
        assert store.stored_indices("g0") == {0, 1}
        assert store.sequences("g0") == (rows.sequence(sample_index=0), rows.sequence(sample_index=1))
        assert store.stored_indices("g1") == frozenset()


class TestRetention:
    def committed(self, rows, store, step=1):
        store.add_group(rows.prompt())
        rows.submit(store)
        store.put_group(dataclasses.replace(store.group("g0"), state=GroupState.COMMITTED, step=step))

    def retained(self, rank, sample_index=0):
        return RetainedSequence(
            rank=rank,
            group_id="g0",
            sample_index=sample_index,
            token_ids=b"1234",
            log_probs=None,
            action_mask=None,
            trainer_log_probs=b"5678",
        )

    def test_committed_groups_up_to_a_step_are_prunable(self, store, rows):
        self.committed(rows, store, step=2)
        assert store.prunable_groups(1, 9) == ()
        assert store.prunable_groups(2, 0) == ("g0",)

    def test_taken_evaluation_groups_are_prunable_by_their_own_step(self, store, rows):
        store.add_group(rows.prompt("e0", 0, Purpose.EVALUATION))
        rows.submit(store, group_id="e0")
        store.put_group(dataclasses.replace(store.group("e0"), state=GroupState.TAKEN, step=3))
        assert store.prunable_groups(9, 2) == ()
        assert store.prunable_groups(0, 3) == ("e0",)

    def test_pruning_removes_columns_and_prompt_and_keeps_scalars(self, store, rows):
        self.committed(rows, store)
        store.prune_group("g0")
        assert store.batches("g0") == ()
        assert store.prompt_group("g0").prompt_token_ids == b""
        assert store.prompt_group("g0").payload == b""
        assert len(store.sequences("g0")) == 2
        assert store.has_submission(SubmissionId("w1", 1, 1))
        assert store.prunable_groups(9, 9) == ()

    def test_the_prompt_stays_while_the_reservoir_needs_it(self, store, rows):
        self.committed(rows, store)
        store.retain(self.retained(5))
        store.prune_group("g0")
        assert store.prompt_group("g0").payload == b"\x00answer"
        store.trim_retained(0)
        assert store.prompt_group("g0").payload == b""

    def test_the_lowest_ranks_stay(self, store, rows):
        self.committed(rows, store)
        store.retain(self.retained(2**62))
        store.retain(self.retained(7, sample_index=1))
        store.trim_retained(1)
        assert store.retained_ranks() == (7,)

    def test_trimming_leaves_the_prompts_of_groups_that_are_not_pruned(self, store, rows):
        self.committed(rows, store)
        store.retain(self.retained(5))
        store.trim_retained(0)
        assert store.prompt_group("g0").payload == b"\x00answer"

    def test_trainer_log_probs_of_old_steps_go(self, store, rows):
        store.add_commit(rows.commit(1))
        store.add_commit(rows.commit(2))
        store.prune_commit_log_probs(1)
        assert store.commit_of(1).log_probs is None
        assert store.commit_of(2).log_probs == b"abcd"
