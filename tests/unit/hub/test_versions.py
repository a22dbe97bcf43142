"""Publishing weight versions, the way to one, and which blobs go."""

import dataclasses

import pytest

from hetero_rl.errors import InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.retention import commit_checkpoint
from hetero_rl.hub.handlers.versions import get_plan, kept_versions, plan, publish_version
from hetero_rl.hub.stores.records import VersionRow
from hetero_rl.wire.messages import ModelFile, WeightEncoding

FULL = frozenset({WeightEncoding.FULL_RAW})
DELTAS = FULL | {WeightEncoding.ULP_DELTA}


def full(messages, version):
    return messages.manifest(version)


def delta(messages, version, base):
    return dataclasses.replace(
        messages.manifest(version), encoding=WeightEncoding.ULP_DELTA, base_version=base
    )


class TestPublish:
    def test_a_version_is_known_once_its_blobs_are_stored(self, hub, messages):
        hub.open()
        with pytest.raises(RefusedError) as caught:
            hub(publish_version, 1, messages.manifest(2))
        assert caught.value.details == {"digest": messages.blob(2).digest}
        assert hub.publish(2) == (False, ())
        assert hub.store.latest_version().version == 2

    def test_the_same_version_again_changes_nothing(self, hub, messages):
        hub.open()
        assert hub(publish_version, 1, messages.manifest(1)) == (True, ())

    def test_a_version_is_never_reused(self, hub, messages):
        hub.open()
        other = messages.manifest(1, step=5)
        with pytest.raises(InvalidMessageError, match="not above the latest, 1"):
            hub(publish_version, 1, other)

    def test_versions_may_leave_gaps_but_not_go_back(self, hub):
        hub.open()
        hub.publish(5)
        with pytest.raises(InvalidMessageError, match="not above the latest, 5"):
            hub.publish(3)


class TestPlan:
    def test_a_full_copy_is_one_manifest(self, messages):
        manifests = [full(messages, version) for version in (1, 2)]
        assert plan(0, 2, FULL, manifests) == (manifests[1],)

    def test_deltas_are_applied_on_top_of_what_is_held(self, messages):
        manifests = [full(messages, 1), delta(messages, 2, 1), delta(messages, 3, 2)]
        assert plan(1, 3, DELTAS, manifests) == tuple(manifests[1:])

    def test_without_a_base_the_chain_begins_at_a_full_copy(self, messages):
        manifests = [full(messages, 1), delta(messages, 2, 1)]
        assert plan(0, 2, DELTAS, manifests) == tuple(manifests)

    def test_a_worker_that_decodes_no_deltas_has_no_way_through_one(self, messages):
        assert plan(1, 2, FULL, [full(messages, 1), delta(messages, 2, 1)]) is None

    def test_a_broken_chain_is_no_way(self, messages):
        assert plan(0, 2, DELTAS, [delta(messages, 2, 1)]) is None

    def test_the_latest_is_the_default_and_held_needs_nothing(self, hub, messages):
        hub.open()
        hub.publish(2)
        assert hub(get_plan, 0, 0, FULL) == (messages.manifest(2),)
        assert hub(get_plan, 2, 0, FULL) == ()
        assert hub(get_plan, 0, 1, FULL) == (messages.manifest(1),)

    def test_a_version_that_never_was_is_unknown(self, hub):
        hub.open()
        with pytest.raises(RefusedError) as caught:
            hub(get_plan, 0, 9, FULL)
        assert caught.value.reason == "UNKNOWN_VERSION"

    def test_encodings_that_lead_nowhere_are_named(self, hub):
        hub.open()
        with pytest.raises(RefusedError, match="ULP_DELTA") as caught:
            hub(get_plan, 0, 1, frozenset({WeightEncoding.ULP_DELTA}))
        assert caught.value.reason == "INCOMPATIBLE"


def rows(*steps):
    return [
        VersionRow(number, step, "", abandoned=False, pruned=False) for number, step in enumerate(steps, 1)
    ]


class TestPruning:
    def test_the_latest_two_and_those_of_checkpoints_stay(self):
        # Versions 1 to 6 of steps 0 to 5; checkpoints at steps 1 and 3.
        assert kept_versions(rows(0, 1, 2, 3, 4, 5), {1, 3}, ()) == {2, 4, 5, 6}

    def test_what_somebody_is_fetching_stays(self):
        assert kept_versions(rows(0, 1, 2, 3), (), {1}) == {1, 3, 4}

    def test_the_newest_below_a_checkpoint_stands_for_it(self):
        assert kept_versions(rows(0, 4, 8, 9), {7}, ()) == {2, 3, 4}

    def test_nothing_is_kept_of_nothing(self):
        assert kept_versions([], {1}, ()) == frozenset()

    def test_old_versions_lose_their_blobs_and_stay_known(self, hub, messages):
        worker = hub.open()
        hub.enqueue(0, 1, 2, 3)
        hub.generate(worker)
        hub.train(1)
        hub.publish(2, step=1)
        hub.train(2)
        # Version 1 of step 0 is what a resume from the start would need, until a checkpoint is there.
        assert hub.publish(3, step=2) == (False, ())
        assert hub(commit_checkpoint, 1, 2, 2) == (messages.blob(1).digest,)
        assert hub.store.version(1).pruned
        with pytest.raises(RefusedError, match="no longer kept"):
            hub(get_plan, 0, 1, FULL)

    def test_a_version_asked_for_a_moment_ago_stays(self, hub, messages):
        hub.open()
        hub(get_plan, 0, 1, FULL)
        hub.publish(2, step=0)
        assert hub.publish(3, step=0)[1] == ()
        hub.clock.advance(601)
        assert set(hub.publish(4, step=0)[1]) == {messages.blob(1).digest, messages.blob(2).digest}

    def test_blobs_shared_with_kept_versions_and_model_files_stay(self, hub, messages):
        hub.open(model_files=(ModelFile("config.json", messages.blob(1)),))
        hub.publish(2, step=0)
        assert hub.publish(3, step=0)[1] == ()
        assert hub.store.version(1).pruned
