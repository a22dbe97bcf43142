"""Publishing weight versions, the way to one, and which blobs go."""

import dataclasses

import pytest

from hetero_rl.errors import FencedError, InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.leasing import lease_work
from hetero_rl.hub.handlers.retention import commit_checkpoint
from hetero_rl.hub.handlers.routes import kept_versions, message_size, plan
from hetero_rl.hub.handlers.runs import open_run
from hetero_rl.hub.handlers.versions import add_route, get_plan, publish_version, unnamed_blobs, wanted_bases
from hetero_rl.hub.handlers.workers import leave
from hetero_rl.hub.stores.records import VersionRow
from hetero_rl.weights.adapter_rules import down_name, up_name
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.convert.weights import manifest_to_proto
from hetero_rl.wire.messages import AdapterDescription, DataType, ModelFile, WeightEncoding, WorkerIdentity

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


class TestAdapters:
    @pytest.fixture
    def version(self, messages):
        """Version 1 as the base and adapters of the module "m"; each tensor is the same two float32."""
        entry = messages.manifest(1).tensors[0]
        tensors = tuple(
            dataclasses.replace(entry, name=name, shape=shape)
            for name, shape in {"m.weight": (1, 2), down_name("m"): (1, 2), up_name("m"): (1, 1)}.items()
        )
        one = dataclasses.replace(tensors[2], size=4)
        tensors = (*tensors[:2], one)
        adapter = AdapterDescription(
            rank=1, alpha=1.0, target_modules=("m",), base_digest=state_digest(tensors[:1])
        )
        return dataclasses.replace(
            messages.manifest(1), tensors=tensors, state_digest=state_digest(tensors), adapter=adapter
        )

    def test_a_run_that_announced_them_publishes_them_and_the_journal_keeps_what_they_are(
        self, hub, messages, version
    ):
        grant = hub(open_run, messages.run_request(adapter_weights=True))
        hub.upload(1)
        assert grant.adapter_weights
        assert hub(publish_version, 1, version) == (False, ())
        assert hub.store.manifest(1).adapter == version.adapter
        assert get_plan(hub.context, 0, 1, FULL)[0].adapter == version.adapter
        assert hub.store.events(0, 100)[-1].message == "version 1 of step 0, adapters of rank 1"

    def test_a_run_that_did_not_is_refused(self, hub, messages, version):
        assert not hub(open_run, messages.run_request()).adapter_weights
        hub.upload(1)
        with pytest.raises(InvalidMessageError, match="opened without adapter_weights"):
            hub(publish_version, 1, version)

    def test_a_worker_that_joined_before_and_loads_none_is_named(self, hub, messages, version):
        hub(open_run, messages.run_request())
        hub.join()
        hub(open_run, messages.run_request(adapter_weights=True))
        hub.upload(1)
        with pytest.raises(RefusedError, match="worker w1 loads no adapters"):
            hub(publish_version, 2, version)
        hub(leave, WorkerIdentity("w1", 1), "gone")
        assert hub(publish_version, 2, version) == (False, ())


class Chain:
    """Deltas of the one tensor of `messages`, published one by one."""

    def __init__(self, hub, messages):
        self.hub, self.messages = hub, messages

    def manifest(self, version, base, step=None, **changes):
        """A delta whose coded bytes are those of the new state: the hub never decodes them."""
        new, old = self.messages.manifest(version, step), self.messages.manifest(base)
        entry = dataclasses.replace(new.tensors[0], base_digest=old.tensors[0].digest, **changes)
        return dataclasses.replace(
            new,
            encoding=WeightEncoding.ULP_DELTA,
            base_version=base,
            tensors=(entry,),
            state_digest=state_digest((entry,)),
        )

    def publish(self, version, base, step=None, epoch=1, **changes):
        self.hub.upload(version)
        return self.hub(publish_version, epoch, self.manifest(version, base, step, **changes))


@pytest.fixture
def chain(hub, messages):
    return Chain(hub, messages)


def open_for_deltas(hub, messages, name="w1"):
    """A run with version 1 and a worker that decodes deltas."""
    capabilities = messages.join_request().capabilities
    hub(open_run, messages.run_request())
    hub.publish(1)
    return hub.join(name, capabilities=dataclasses.replace(capabilities, weight_encodings=(1, 3)))


class TestDelta:
    def test_a_delta_against_a_version_of_the_history_is_taken(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        assert chain.publish(2, 1) == (False, ())
        assert chain.publish(2, 1) == (True, ())
        assert [item.version for item in hub(get_plan, 1, 0, DELTAS)] == [2]
        assert [item.version for item in hub(get_plan, 0, 0, DELTAS)] == [1, 2]

    def test_a_base_that_was_never_published_is_refused(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        with pytest.raises(InvalidMessageError, match="against 2, which was never published"):
            chain.publish(3, 2)

    def test_a_base_that_a_resume_abandoned_is_refused(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        chain.publish(2, 1, step=1)
        hub(open_run, messages.run_request(resume_step=0))
        with pytest.raises(InvalidMessageError, match="against 2, which a resume took out of the history"):
            chain.publish(3, 2, step=1, epoch=2)
        assert chain.publish(4, 1, step=1, epoch=2) == (False, ())

    def test_a_base_whose_blobs_are_gone_is_refused(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        for version in (2, 3):
            hub.publish(version, step=0)
        with pytest.raises(InvalidMessageError, match="against 1, which is no longer kept"):
            chain.publish(4, 1)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"name": "renamed"}, "lacks tensor 't'"),
            ({"shape": (1, 2)}, r"'t' is FLOAT32\[1, 2\] in the delta, FLOAT32\[2\] in the held version"),
            ({"data_type": DataType.INT32}, "'t' is INT32"),
            ({"tied_names": ("head",)}, "'t' is tied to"),
            ({"base_digest": "0" * 64}, "'t' of the held version has digest"),
        ],
    )
    def test_a_delta_that_does_not_fit_its_base_is_refused_by_name(
        self, hub, messages, chain, changes, message
    ):
        open_for_deltas(hub, messages)
        hub.upload(2)
        manifest = chain.manifest(2, 1)
        tensors = (dataclasses.replace(manifest.tensors[0], **changes),)
        manifest = dataclasses.replace(manifest, tensors=tensors, state_digest=state_digest(tensors))
        with pytest.raises(InvalidMessageError, match=message):
            hub(publish_version, 1, manifest)
        assert hub.store.latest_version().version == 1

    def test_a_worker_that_decodes_no_deltas_is_not_left_behind(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        plain = hub.join("w2")
        with pytest.raises(RefusedError, match="worker w2 decodes no deltas") as caught:
            chain.publish(2, 1)
        assert caught.value.reason == "INCOMPATIBLE"
        hub(leave, plain, "done")
        assert chain.publish(2, 1) == (False, ())


class TestOtherWays:
    """Versions 1 (a full copy) and 2, 3, 4 (deltas); `chain.manifest(4, 1)` is a merged delta."""

    @pytest.fixture(autouse=True)  # ruff: ignore[pytest-fixture-autouse] every test of the class begins with them
    def versions(self, hub, messages, chain):
        self.worker = open_for_deltas(hub, messages)
        for version in (2, 3, 4):
            chain.publish(version, version - 1, step=0)

    def versions_of(self, hub, held, encodings=DELTAS):
        return [(item.version, item.base_version) for item in hub(get_plan, held, 0, encodings)]

    def test_a_merged_delta_replaces_the_chain_where_it_is_less(self, hub, chain):
        assert self.versions_of(hub, 1) == [(2, 1), (3, 2), (4, 3)]
        assert hub(add_route, 1, chain.manifest(4, 1, step=0)) == (False, ())
        assert hub(add_route, 1, chain.manifest(4, 1, step=0)) == (True, ())
        assert self.versions_of(hub, 1) == [(4, 1)]

    def test_a_full_copy_besides_the_delta_serves_late_joiners_only(self, hub, messages):
        hub(add_route, 1, messages.manifest(4, step=0))
        assert self.versions_of(hub, 0) == [(4, 0)]
        assert self.versions_of(hub, 0, FULL) == [(4, 0)]
        assert self.versions_of(hub, 3) in ([(4, 3)], [(4, 0)])

    def test_a_way_to_a_version_that_is_not_published_is_refused(self, hub, messages):
        hub.upload(9)
        with pytest.raises(InvalidMessageError, match="9 was never published"):
            hub(add_route, 1, messages.manifest(9))

    @pytest.mark.parametrize("step", [0, 7])
    def test_a_way_that_leads_elsewhere_is_refused(self, hub, messages, step):
        manifest = dataclasses.replace(messages.manifest(3 if step == 0 else 4, step=step), version=4)
        with pytest.raises(InvalidMessageError, match="leads to other tensors, another step"):
            hub(add_route, 1, manifest)

    def test_another_coding_of_a_known_way_is_refused(self, hub, chain):
        with pytest.raises(InvalidMessageError, match="another way from version 3 to 4 is known"):
            hub(add_route, 1, chain.manifest(4, 3, step=5))

    def test_a_way_without_its_blobs_is_refused(self, hub, messages):
        blob = dataclasses.replace(messages.blob(4), digest="0" * 64)
        manifest = dataclasses.replace(messages.manifest(4, step=0), blobs=(blob,))
        with pytest.raises(RefusedError, match="is not stored") as caught:
            hub(add_route, 1, manifest)
        assert caught.value.reason == "NOT_FOUND"

    def test_a_former_trainer_adds_nothing(self, hub, messages):
        hub(open_run, messages.run_request(resume_step=0))
        with pytest.raises(FencedError):
            hub(add_route, 1, messages.manifest(4, step=0))

    def test_the_hub_says_from_where_workers_would_like_a_merged_delta(self, hub, messages, chain):
        assert hub(wanted_bases) == ()
        self.load(hub, self.worker, 1)
        assert hub(wanted_bases) == (1,)
        hub(add_route, 1, chain.manifest(4, 1, step=0))
        assert hub(wanted_bases) == ()
        self.load(hub, self.worker, 2)
        assert hub(wanted_bases) == ()

    def test_a_new_full_copy_lets_go_of_what_nobody_needs_any_more(self, hub, messages, chain):
        self.load(hub, self.worker, 3)
        chain.publish(5, 4, step=0)
        dropped = hub(add_route, 1, messages.manifest(5, step=0))[1]
        # Somebody may still be on the way to version 4, from nothing by way of 1, 2 and 3.
        assert dropped == ()
        _, dropped = chain.publish(6, 5, step=0)
        assert {messages.blob(version).digest for version in (1, 2, 3)} <= set(dropped)
        assert [row.pruned for row in self.rows(hub)] == [True, True, True, True, False, False]
        assert self.versions_of(hub, 3) == [(5, 0), (6, 5)]

    def rows(self, hub):
        return [hub.store.version(version) for version in range(1, 7)]

    def load(self, hub, worker, version):
        hub(lease_work, worker, loaded_weight_version=version, free_sequences=1)


class TestUnnamedBlobs:
    def test_what_nothing_names_goes_after_a_grace(self, hub, messages):
        hub.open(model_files=(ModelFile("config.json", messages.blob(8)),))
        hub.upload(8)
        hub.upload(9)  # a publication that never got to its manifest
        half = hub.blobs.open_upload(messages.blob(7))
        half.write(0, messages.weights(7)[:3])
        half.close()
        assert hub(unnamed_blobs) == ()
        hub.clock.advance(3599)
        assert hub(unnamed_blobs) == ()
        hub.clock.advance(1)
        assert set(hub(unnamed_blobs)) == {messages.blob(9).digest, messages.blob(7).digest}
        assert not hub.blobs.has(messages.blob(9))
        assert hub.blobs.held_bytes(messages.blob(7)) == 0
        assert hub.blobs.has(messages.blob(8))
        assert hub.blobs.has(messages.blob(1))

    def test_what_is_named_in_time_stays(self, hub, messages):
        hub.open()
        hub.upload(2)
        hub(unnamed_blobs)
        hub.clock.advance(3000)
        hub.publish(2)
        hub.clock.advance(3000)
        assert hub(unnamed_blobs) == ()

    def test_what_is_being_uploaded_stays(self, hub, messages):
        hub.open()
        upload = hub.blobs.open_upload(messages.blob(2))
        hub(unnamed_blobs)
        hub.clock.advance(4000)
        assert hub(unnamed_blobs) == ()
        upload.close()


class TestLongWay:
    def test_a_way_that_does_not_fit_into_a_message_comes_in_parts(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        for version in (2, 3, 4):
            chain.publish(version, version - 1, step=0)
        size = len(manifest_to_proto(chain.manifest(3, 2)).SerializeToString())
        parts = {}
        for limit in (1, 4 * size, 2**20):
            hub.context.settings = dataclasses.replace(hub.settings, max_message_bytes=limit)
            parts[limit] = [item.version for item in hub(get_plan, 1, 0, DELTAS)]
        # Half of the limit is used, and sizes are estimated from above.
        assert parts == {1: [2], 4 * size: [2], 2**20: [2, 3, 4]}

    def test_no_manifest_is_larger_than_it_is_thought_to_be(self, messages, chain):
        card = messages.manifest(2, tolerance=0.1).probe_card
        wide = {
            "shape": (2**39,) * 8,
            "tied_names": ("h\u00e9ad",) * 3,
            "changed_elements": 2**39,
            "offset": 2**60,
        }
        for manifest in (messages.manifest(2), chain.manifest(2, 1), chain.manifest(2, 1, **wide)):
            carded = dataclasses.replace(manifest, probe_card=card)
            assert len(manifest_to_proto(carded).SerializeToString()) <= message_size(carded)


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

    def test_of_two_ways_the_one_of_fewer_bytes_is_taken(self, messages):
        def sized(manifest, size):
            return dataclasses.replace(manifest, blobs=(dataclasses.replace(manifest.blobs[0], size=size),))

        chain = [sized(delta(messages, version, version - 1), 10_000) for version in (2, 3, 4)]
        for full_size, merged_size, way in (
            (60_000, 25_000, [(4, 1)]),
            (60_000, 35_000, [(2, 1), (3, 2), (4, 3)]),
            (20_000, 25_000, [(4, 0)]),
        ):
            others = [sized(full(messages, 4), full_size), sized(delta(messages, 4, 1), merged_size)]
            found = plan(1, 4, DELTAS, [*chain, *others])
            assert [(item.version, item.base_version) for item in found] == way

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

    def test_what_a_kept_delta_builds_on_stays_back_to_its_anchor(self, hub, messages, chain):
        open_for_deltas(hub, messages)
        for version in (2, 3, 4):
            assert chain.publish(version, version - 1, step=0) == (False, ())
        hub.publish(5, step=0)
        # Version 4 is the one before the latest: a worker may still be on its way to it.
        assert not any(hub.store.version(version).pruned for version in (1, 2, 3, 4))
        _, dropped = chain.publish(6, 5, step=0)
        assert set(dropped) == {messages.blob(version).digest for version in (1, 2, 3, 4)}
        assert [item.version for item in hub(get_plan, 0, 0, DELTAS)] == [5, 6]
        assert [item.version for item in hub(get_plan, 2, 0, DELTAS)] == [5, 6]

    def test_blobs_shared_with_kept_versions_and_model_files_stay(self, hub, messages):
        hub.open(model_files=(ModelFile("config.json", messages.blob(1)),))
        hub.publish(2, step=0)
        assert hub.publish(3, step=0)[1] == ()
        assert hub.store.version(1).pruned
