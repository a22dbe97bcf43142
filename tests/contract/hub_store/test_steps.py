"""Applied steps and weight versions."""

import dataclasses

import pytest

from hetero_rl.hub.stores.base import ConflictError


class TestSteps:
    def test_a_commit_comes_back_with_its_outcomes_in_order(self, store, rows):
        outcomes = (rows.outcome(sample_index=1), rows.outcome(sample_index=0, staleness_log_ratio=-0.5))
        store.add_commit(rows.commit(1, outcomes=outcomes))
        assert store.commit_of(1) == rows.commit(1, outcomes=outcomes)
        assert store.commit_of(2) is None

    def test_a_step_counts_once(self, store, rows):
        store.add_commit(rows.commit(1))
        with pytest.raises(ConflictError), store.nested():
            store.add_commit(rows.commit(1))

    def test_abandoned_steps_make_room_and_stay(self, store, rows):
        for step in (1, 2, 3):
            store.add_commit(rows.commit(step))
        assert store.abandon_after(1) == 2
        assert store.commit_of(1) is not None
        assert store.commit_of(2) is None
        store.add_commit(rows.commit(2, trainer_epoch=2))
        assert store.commit_of(2).trainer_epoch == 2
        assert store.abandon_after(3) == 0

    def test_versions_of_abandoned_steps_are_marked(self, store, rows):
        store.add_version(rows.manifest(1, step=1))
        store.add_version(rows.manifest(2, step=2))
        store.abandon_after(1)
        assert [row.abandoned for row in store.versions()] == [False, True]


class TestVersions:
    def test_a_manifest_comes_back_as_it_was_published(self, store, rows):
        store.add_version(rows.manifest(2, step=1))
        assert store.manifest(2) == rows.manifest(2, step=1)
        assert store.manifest(1) is None
        assert store.version(1) is None
        assert store.version(2).state_digest == "s"

    def test_the_latest_is_the_highest(self, store, rows):
        assert store.latest_version() is None
        store.add_version(rows.manifest(1))
        store.add_version(rows.manifest(2))
        assert store.latest_version().version == 2

    def test_pruned_versions_are_known_but_not_listed(self, store, rows):
        store.add_version(rows.manifest(1))
        store.add_version(rows.manifest(2))
        store.mark_version_pruned(1)
        assert [row.version for row in store.versions()] == [2]
        assert store.version(1).pruned
        with pytest.raises(ConflictError):
            store.mark_version_pruned(9)


class TestRoutes:
    def test_another_way_is_kept_beside_the_versions_own(self, store, rows):
        way = dataclasses.replace(rows.manifest(2), base_version=1)
        store.add_version(rows.manifest(2))
        store.add_route(way)
        assert store.route(2, 1) == way
        assert store.route(2, 0) is None
        assert store.routes() == (way,)
        assert store.manifest(2) == rows.manifest(2)

    def test_pruned_ways_are_known_but_not_listed(self, store, rows):
        way = dataclasses.replace(rows.manifest(2), base_version=1)
        store.add_route(way)
        store.mark_route_pruned(2, 1)
        assert store.routes() == ()
        assert store.route(2, 1) == way
        with pytest.raises(ConflictError):
            store.mark_route_pruned(2, 0)

    def test_a_way_is_added_once(self, store, rows):
        store.add_route(rows.manifest(2))
        with pytest.raises(ConflictError), store.nested():
            store.add_route(rows.manifest(2))
