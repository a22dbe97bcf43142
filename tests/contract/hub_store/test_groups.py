"""Groups and leases."""

import dataclasses

import pytest

from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.records import (
    GroupState,
    LeaseRow,
)
from hetero_rl.wire.messages import (
    Purpose,
)


class TestGroups:
    def test_a_group_comes_back_as_it_was_enqueued(self, store, rows):
        store.add_group(rows.prompt())
        assert store.prompt_group("g0") == rows.prompt()
        assert store.sampling("g0") == rows.prompt().sampling
        row = store.group("g0")
        assert (row.state, row.step, row.stored, row.min_weight_version) == (GroupState.QUEUED, 0, 0, 3)

    def test_an_unknown_group_is_none(self, store):
        assert store.group("nobody") is None
        with pytest.raises(ConflictError, match="nobody"):
            store.prompt_group("nobody")
        with pytest.raises(ConflictError, match="nobody"):
            store.sampling("nobody")

    def test_a_known_group_is_not_added_again(self, store, rows):
        store.add_group(rows.prompt())
        with pytest.raises(ConflictError), store.nested():
            store.add_group(rows.prompt())

    def test_rows_of_unknown_groups_cannot_be_replaced(self, store, rows):
        store.add_group(rows.prompt())
        row = dataclasses.replace(store.group("g0"), group_id="nobody")
        with pytest.raises(ConflictError, match="nobody"):
            store.put_group(row)

    def test_the_queue_is_in_order_of_ordinals_by_purpose(self, store, rows):
        for ordinal in (2, 0, 1):
            store.add_group(rows.prompt(f"g{ordinal}", ordinal))
        store.add_group(rows.prompt("e0", 0, Purpose.EVALUATION))
        queued = store.queued_groups(Purpose.TRAIN, 2)
        assert [row.group_id for row in queued] == ["g0", "g1"]
        assert [row.group_id for row in store.queued_groups(Purpose.EVALUATION, 9)] == ["e0"]

    def test_a_leased_group_is_not_queued(self, store, rows):
        store.add_group(rows.prompt())
        store.put_group(dataclasses.replace(store.group("g0"), state=GroupState.LEASED, attempts=1))
        assert store.queued_groups(Purpose.TRAIN, 9) == ()
        assert store.group("g0").attempts == 1

    def test_steps_keep_their_groups(self, store, rows):
        for ordinal in (1, 0, 2):
            store.add_group(rows.prompt(f"g{ordinal}", ordinal))
        store.add_group(rows.prompt("e0", 0, Purpose.EVALUATION))
        for group_id in ("g0", "g1"):
            store.put_group(dataclasses.replace(store.group(group_id), step=4))
        assert [row.group_id for row in store.groups_of_step(4)] == ["g0", "g1"]
        assert [row.group_id for row in store.unassigned_training_groups()] == ["g2"]
        assert store.last_assigned_step() == 4

    def test_a_taken_evaluation_group_does_not_count_as_a_step(self, store, rows):
        store.add_group(rows.prompt("e0", 0, Purpose.EVALUATION))
        store.put_group(dataclasses.replace(store.group("e0"), step=9))
        assert store.last_assigned_step() == 0

    def test_ordinals_and_counts_start_at_nothing(self, store):
        assert store.next_train_ordinal() == 0
        assert store.last_assigned_step() == 0
        assert dict(store.group_counts()) == {}

    def test_the_next_ordinal_follows_the_highest_in_any_state(self, store, rows):
        store.add_group(rows.prompt("g0", 0))
        store.add_group(rows.prompt("g1", 1))
        store.add_group(rows.prompt("e7", 7, Purpose.EVALUATION))
        store.put_group(dataclasses.replace(store.group("g1"), state=GroupState.COMMITTED))
        assert store.next_train_ordinal() == 2
        assert store.group_counts()[Purpose.TRAIN, GroupState.COMMITTED] == 1

    def test_groups_are_counted_by_purpose_and_state(self, store, rows):
        store.add_group(rows.prompt("g0", 0))
        store.add_group(rows.prompt("e0", 0, Purpose.EVALUATION))
        store.add_group(rows.prompt("e1", 1, Purpose.EVALUATION))
        assert store.count_groups(Purpose.EVALUATION, GroupState.QUEUED) == 2
        assert store.count_groups(Purpose.TRAIN, GroupState.LEASED) == 0


class TestLeases:
    LEASE = LeaseRow(
        lease_id="g0.0",
        group_id="g0",
        worker_name="w1",
        worker_epoch=1,
        attempt=0,
        min_weight_version=1,
        sample_indices=(0, 1),
    )

    def test_a_lease_is_known_until_it_is_removed(self, store):
        store.add_lease(self.LEASE)
        assert store.lease("g0.0") == self.LEASE
        store.remove_lease("g0.0")
        assert store.lease("g0.0") is None

    def test_leases_are_listed_by_worker(self, store):
        other = dataclasses.replace(self.LEASE, lease_id="g1.0", worker_name="w2")
        store.add_lease(other)
        store.add_lease(self.LEASE)
        assert store.leases("w2") == (other,)
        assert store.leases() == (self.LEASE, other)
        assert store.count_leases() == 2
        store.remove_lease("g1.0")
        assert store.count_leases() == 1

    def test_an_unknown_lease_cannot_be_removed(self, store):
        with pytest.raises(ConflictError):
            store.remove_lease("nobody")
