"""Weights from a trainer through a real hub to a worker: whatever goes wrong between, they end bit-identical, or loudly."""

import asyncio

import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError, RefusedError
from hetero_rl.relay.server import running_relay
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import WeightEncoding

pytestmark = pytest.mark.asyncio


def size_of(manifests):
    return sum(blob.size for manifest in manifests for blob in manifest.blobs)


async def test_a_worker_that_keeps_up_fetches_one_full_copy_and_then_deltas_only(site, client):
    publisher = await site.open(anchor_every=4)
    stage = site.worker(client)
    for step in range(11):
        await site.publish(publisher, step)
        plan = await site.plan(client, held=step)
        assert [(item.version, item.base_version) for item in plan] == [(step + 1, step)]
        await site.follow(stage, step)
    assert await stage.advance(site.newest) is None
    assert stage.fallbacks == 0


async def test_full_copies_are_made_in_the_background_for_those_who_join_late(site, client):
    publisher = await site.open(anchor_every=4)
    starts = []
    for step in range(11):
        await site.publish(publisher, step)
        first, *_ = await site.plan(client)
        assert first.encoding is WeightEncoding.FULL_RAW
        starts.append(first.version)
    assert starts == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9]


async def test_a_delta_is_much_smaller_and_says_how_much_changed(site, client):
    publisher = await site.open()
    await site.publish(publisher, 0, 1)
    full, delta = await site.plan(client)
    changed = int((site.state_after(0)["embed"] != site.state_after(1)["embed"]).sum())
    assert sum(blob.size for blob in delta.blobs) * 5 < sum(blob.size for blob in full.blobs)
    assert [entry.changed_elements for entry in delta.tensors] == [changed, 0]
    assert [entry.tied_names for entry in delta.tensors] == [("head",), ()]
    assert [entry.changed_elements for entry in full.tensors] == [None, None]


async def test_a_worker_seven_versions_behind_gets_the_deltas_between_only(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, *range(1, 8))
    plan = await site.plan(client, held=1)
    assert [manifest.version for manifest in plan] == [2, 3, 4, 5, 6, 7, 8]
    await site.follow(stage, 7)


async def test_a_worker_known_to_be_seven_versions_behind_gets_one_merged_delta(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    chain = []
    await site.says_it_has_loaded(1)
    for step in range(1, 8):
        await site.publish(publisher, step)
        chain += await site.plan(client, held=step)
    plan = await site.plan(client, held=1)
    site.fetched.clear()
    await site.follow(stage, 7)
    assert [(manifest.base_version, manifest.version) for manifest in plan] == [(1, 8)]
    assert site.fetched == [blob.digest for manifest in plan for blob in manifest.blobs]
    assert size_of(plan) < 0.8 * size_of(chain)


async def test_a_worker_from_before_the_newest_anchor_goes_through_the_anchor_when_that_is_less(site, client):
    publisher = await site.open(anchor_every=4)
    stage = site.worker(client)
    await site.publish(publisher, 0, 1)
    await site.follow(stage, 1)
    await site.publish(publisher, *range(2, 13))
    assert [manifest.version for manifest in await site.plan(client, held=2)] == [13]
    await site.follow(stage, 12)


async def test_a_late_joiner_begins_at_the_newest_anchor(site, client):
    publisher = await site.open(anchor_every=4)
    await site.publish(publisher, *range(7))
    assert [manifest.version for manifest in await site.plan(client)] == [5, 6, 7]
    await site.follow(site.worker(client), 6)


async def test_a_worker_that_was_killed_finds_what_it_had_on_its_disk(site, client):
    publisher = await site.open()
    await site.publish(publisher, 0, 1, 2)
    await site.follow(site.worker(client), 2)
    await site.publish(publisher, 3)
    site.fetched.clear()
    await site.follow(site.worker(client), 3)
    assert site.fetched == [(await site.plan(client))[-1].blobs[0].digest]


async def test_a_worker_that_holds_an_abandoned_version_ends_with_the_resumed_weights(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0, 1, 2)
    await site.follow(stage, 2)
    resumed = await site.open(resume_step=0)
    await site.publish(resumed, 0)
    assert [manifest.encoding for manifest in await site.plan(client, held=3)] == [WeightEncoding.FULL_RAW]
    await site.follow(stage, 0)


async def test_a_publisher_killed_between_blobs_and_manifest_leaves_the_version_before(site, client):
    class Dying:
        put_blob = staticmethod(site.trainer.put_blob)

        @staticmethod
        def publish_version(manifest):
            if manifest.version == 3:
                raise KeyboardInterrupt
            site.trainer.publish_version(manifest)

    publisher = await site.open(port=Dying)
    stage = site.worker(client)
    await site.publish(publisher, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        await site.publish(publisher, 2)
    await site.follow(stage, 1)
    resumed = await site.open(resume_step=0)
    await site.publish(resumed, 0, 1)
    await site.follow(stage, 1)
    assert stage.version == 4


async def test_a_version_published_twice_counts_once(site, client):
    class Stammering:
        put_blob = staticmethod(site.trainer.put_blob)

        @staticmethod
        def publish_version(manifest):
            site.trainer.publish_version(manifest)
            site.trainer.publish_version(manifest)

    publisher = await site.open(port=Stammering)
    stage = site.worker(client)
    await site.publish(publisher, 0, 1, 2)
    assert [manifest.version for manifest in await site.plan(client)] == [1, 2, 3]
    await site.follow(stage, 2)


async def test_a_blob_damaged_at_the_hub_is_never_loaded_and_the_next_full_copy_replaces_it(site, client):
    publisher = await site.open(anchor_every=2)
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1)
    (delta,) = await site.plan(client, held=1)
    path = site.blob_file(delta)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for _ in range(2):
        with pytest.raises(RefusedError, match=delta.blobs[0].digest):
            await stage.advance(site.newest)
        assert (stage.version, stage.fallbacks) == (1, 0)  # the hub noticed, so the worker keeps what it has
    await site.publish(publisher, 2)
    await site.follow(stage, 2)


async def test_held_bytes_that_are_not_what_they_should_be_are_given_up(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0, 1)
    await site.follow(stage, 1)
    stage.held.raw("embed")[0] ^= 1
    await site.publish(publisher, 2)
    with pytest.raises(DamagedError, match="'embed' has digest"):
        await stage.advance(site.newest)
    assert (stage.version, stage.fallbacks) == (0, 1)
    await site.follow(stage, 2)


async def test_a_trainer_that_builds_on_what_the_hub_has_not_publishes_an_anchor(site, client):
    class Forgetful:
        """Says that version 2 is stored, and loses it."""

        put_blob = staticmethod(site.trainer.put_blob)

        @staticmethod
        def publish_version(manifest):
            if manifest.version != 2:
                site.trainer.publish_version(manifest)

    publisher = await site.open(port=Forgetful)
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1, 2)
    assert [(manifest.version, manifest.encoding) for manifest in await site.plan(client, held=1)] == [
        (3, WeightEncoding.FULL_RAW)
    ]
    await site.follow(stage, 2)


async def test_workers_behind_a_relay_follow_and_each_blob_leaves_the_hub_once(site, client, tmp_path):
    publisher = await site.open()
    upstream = site.counting(client, leaving := [])
    async with (
        running_relay(upstream, tmp_path / "relay") as relay,
        WeightClient(relay.address) as first,
        WeightClient(relay.address) as second,
    ):
        stages = [site.worker(first, "w1"), site.worker(second, "w2")]
        for step in range(3):
            await site.publish(publisher, step)
            await first.await_version(step, 60.0)
            await asyncio.gather(*(site.follow(stage, step) for stage in stages))
    assert len(leaving) == len(set(leaving)) == 3
