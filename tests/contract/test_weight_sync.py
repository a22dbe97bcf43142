"""Weights from a trainer through a real hub to a worker: whatever goes wrong between, they end bit-identical, or loudly."""

import asyncio
import dataclasses
import threading
import types

import pytest
import pytest_asyncio
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.config.tree import WeightsConfig
from hetero_rl.errors import DamagedError
from hetero_rl.hub.blobs import LocalBlobStore
from hetero_rl.hub.handlers.context import HubSettings
from hetero_rl.hub.server import running_hub
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.relay.server import running_relay
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.publish import Publisher
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.tensors import raw_bytes
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.clients import RolloutClient, WeightClient
from hetero_rl.wire.messages import (
    Capabilities,
    Heartbeat,
    JoinRequest,
    Limits,
    ModelDigests,
    NumericsRecord,
    RunRequest,
    SamplingParameters,
    WeightEncoding,
    WorkerIdentity,
)
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.weight_stage import WeightStage

pytestmark = pytest.mark.asyncio

NEWEST = 2**62
"""Above every version: a worker goes on until the hub has nothing newer."""
PACING = Pacing(first_delay=0.001, longest_delay=0.002, patience=30.0)
REQUEST = RunRequest(
    run_id="run",
    groups_per_step=2,
    max_lag=1,
    total_steps=100,
    model_digests=ModelDigests(config="c" * 64, tokenizer="d" * 64),
    model_files=(),
    sampling=SamplingParameters(max_new_tokens=8, stop_token_ids=(2,)),
    limits=Limits(
        max_message_bytes=2**20,
        max_prompt_tokens=16,
        max_completion_tokens=8,
        max_group_size=4,
        vocabulary_size=100,
    ),
    config_json="{}",
    software_version="0",
)


JOIN = JoinRequest(
    run_id="run",
    worker_name="w",
    boot_id="boot",
    backend="cpu",
    software_version="0",
    capabilities=Capabilities(
        max_concurrent_sequences=8,
        max_sequence_tokens=64,
        scoring=True,
        in_flight_update=True,
        processed_log_probs=False,
        weight_encodings=(1, 3),
    ),
    numerics=NumericsRecord(
        engine="scripted",
        engine_version="1",
        torch_version="2",
        device_vendor="cpu",
        device_name="test",
        driver_version="",
        runtime_version="",
        data_type="float32",
        attention_backend="none",
        log_probs_mode="raw",
    ),
    model_digests=REQUEST.model_digests,
)


def size_of(manifests):
    return sum(blob.size for manifest in manifests for blob in manifest.blobs)


def state_after(steps):
    """A model with a tied head after some small steps, in bfloat16; the same for the same number."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(64, 32, generator=generator) * 0.02
    for _ in range(steps):
        weight += torch.randn(64, 32, generator=generator) * 2e-5
    embedding = weight.to(torch.bfloat16)
    return {"embed": embedding, "norm": torch.ones(32, dtype=torch.bfloat16), "head": embedding}


def digests_after(steps):
    return {
        name: digest_of_bytes(raw_bytes(tensor))
        for name, tensor in state_after(steps).items()
        if name != "head"
    }


def digests_of(held):
    return {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in held.tensors()}


class Site:
    """A hub with its directory, trainers that publish to it and workers that follow it."""

    def __init__(self, address, directory, trainer):
        self.address, self.directory, self.trainer = address, directory, trainer
        self.manifests = []
        self.fetched = []

    async def open(self, *, resume_step=0, anchor_every=16, port=None):
        """A trainer that opens the run; returns its publisher."""
        request = dataclasses.replace(REQUEST, resume_step=resume_step)
        grant = await asyncio.to_thread(self.trainer.open_run, request)
        return Publisher(
            types.SimpleNamespace(twin=lambda: None),
            port or self.trainer,
            WeightsConfig(anchor_every=anchor_every),
            probes=(),
            latest_version=grant.latest_weight_version,
            directory=self.directory / "outgoing",
            patience=Patience(StopSignal(threading.Event())),
            clock=WaitClock(),
        )

    async def publish(self, publisher, *steps):
        for step in steps:
            await asyncio.to_thread(publisher.publish, Snapshot(step, state_after(step)))
            await asyncio.to_thread(publisher.settle)

    def worker(self, client, name="w"):
        link = Link(None, PACING)
        session = types.SimpleNamespace(link=link, weights=_Counting(client, self.fetched), pacing=PACING)
        return WeightStage(session, BlobCache(self.directory / name, session.weights, link))

    async def plan(self, client, held=0):
        encodings = (WeightEncoding.FULL_RAW, WeightEncoding.ULP_DELTA)
        return await client.get_plan(held_version=held, wanted_version=0, encodings=encodings)

    async def says_it_has_loaded(self, version):
        """A worker joins the hub and reports a version."""
        async with RolloutClient(self.address) as rollout:
            grant = await rollout.join(JOIN)
            await rollout.heartbeat(
                Heartbeat(
                    worker=WorkerIdentity("w", grant.worker_epoch),
                    lease_ids=(),
                    loaded_weight_version=version,
                    generated_tokens=0,
                    busy_seconds=0.0,
                )
            )

    def blob_file(self, manifest):
        (blob,) = manifest.blobs
        (path,) = [path for path in (self.directory / "blobs").rglob(f"*{blob.digest}*") if path.is_file()]
        return path


class _Counting:
    """The weight service, with a list of the digests that were fetched."""

    def __init__(self, client, fetched):
        self.get_plan, self._client, self._fetched = client.get_plan, client, fetched

    def fetch_blob(self, digest, offset):
        self._fetched.append(digest)
        return self._client.fetch_blob(digest, offset)


@pytest_asyncio.fixture
async def site(tmp_path):
    store = SqliteStore(tmp_path / "journal.sqlite")
    blobs = LocalBlobStore(tmp_path / "blobs")
    async with running_hub(store, blobs, HubSettings(max_message_bytes=2**20)) as hub:
        with TrainingClient(hub.address) as trainer:
            yield Site(hub.address, tmp_path, trainer)


@pytest_asyncio.fixture
async def client(site):
    async with WeightClient(site.address) as client:
        yield client


async def follow(stage, step):
    """Brings a worker to the latest version; fails unless it has the weights of that step bit for bit."""
    staged = await stage.advance(NEWEST)
    stage.keep(staged)
    assert digests_of(staged) == digests_after(step)
    assert staged.manifest.step == step
    assert staged.manifest.state_digest == state_digest(staged.manifest.tensors)


async def test_a_worker_that_keeps_up_fetches_one_full_copy_and_then_deltas_only(site, client):
    publisher = await site.open(anchor_every=4)
    stage = site.worker(client)
    for step in range(11):
        await site.publish(publisher, step)
        plan = await site.plan(client, held=step)
        assert [(item.version, item.base_version) for item in plan] == [(step + 1, step)]
        await follow(stage, step)
    assert await stage.advance(NEWEST) is None
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
    changed = int((state_after(0)["embed"] != state_after(1)["embed"]).sum())
    assert sum(blob.size for blob in delta.blobs) * 5 < sum(blob.size for blob in full.blobs)
    assert [entry.changed_elements for entry in delta.tensors] == [changed, 0]
    assert [entry.tied_names for entry in delta.tensors] == [("head",), ()]
    assert [entry.changed_elements for entry in full.tensors] == [None, None]


async def test_a_worker_seven_versions_behind_gets_the_deltas_between_only(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await follow(stage, 0)
    await site.publish(publisher, *range(1, 8))
    plan = await site.plan(client, held=1)
    assert [manifest.version for manifest in plan] == [2, 3, 4, 5, 6, 7, 8]
    await follow(stage, 7)


async def test_a_worker_known_to_be_seven_versions_behind_gets_one_merged_delta(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await follow(stage, 0)
    chain = []
    await site.says_it_has_loaded(1)
    for step in range(1, 8):
        await site.publish(publisher, step)
        chain += await site.plan(client, held=step)
    plan = await site.plan(client, held=1)
    site.fetched.clear()
    await follow(stage, 7)
    assert [(manifest.base_version, manifest.version) for manifest in plan] == [(1, 8)]
    assert site.fetched == [blob.digest for manifest in plan for blob in manifest.blobs]
    assert size_of(plan) < 0.8 * size_of(chain)


async def test_a_worker_from_before_the_newest_anchor_goes_through_the_anchor_when_that_is_less(site, client):
    publisher = await site.open(anchor_every=4)
    stage = site.worker(client)
    await site.publish(publisher, 0, 1)
    await follow(stage, 1)
    await site.publish(publisher, *range(2, 13))
    assert [manifest.version for manifest in await site.plan(client, held=2)] == [13]
    await follow(stage, 12)


async def test_a_late_joiner_begins_at_the_newest_anchor(site, client):
    publisher = await site.open(anchor_every=4)
    await site.publish(publisher, *range(7))
    assert [manifest.version for manifest in await site.plan(client)] == [5, 6, 7]
    await follow(site.worker(client), 6)


async def test_a_worker_that_was_killed_finds_what_it_had_on_its_disk(site, client):
    publisher = await site.open()
    await site.publish(publisher, 0, 1, 2)
    await follow(site.worker(client), 2)
    await site.publish(publisher, 3)
    site.fetched.clear()
    await follow(site.worker(client), 3)
    assert site.fetched == [(await site.plan(client))[-1].blobs[0].digest]


async def test_a_worker_that_holds_an_abandoned_version_ends_with_the_resumed_weights(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0, 1, 2)
    await follow(stage, 2)
    resumed = await site.open(resume_step=0)
    await site.publish(resumed, 0)
    assert [manifest.encoding for manifest in await site.plan(client, held=3)] == [WeightEncoding.FULL_RAW]
    await follow(stage, 0)


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
    await follow(stage, 1)
    resumed = await site.open(resume_step=0)
    await site.publish(resumed, 0, 1)
    await follow(stage, 1)
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
    await follow(stage, 2)


async def test_a_damaged_blob_is_never_loaded_and_a_full_copy_follows_it(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await follow(stage, 0)
    await site.publish(publisher, 1)
    (delta,) = await site.plan(client, held=1)
    path = site.blob_file(delta)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for damaged in (1, 2):
        with pytest.raises(DamagedError, match=delta.blobs[0].digest):
            await stage.advance(NEWEST)
        assert (stage.version, stage.fallbacks) == (0, damaged)
    path.write_bytes(whole)
    await follow(stage, 1)


async def test_held_bytes_that_are_not_what_they_should_be_are_given_up(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0, 1)
    await follow(stage, 1)
    stage.held.raw("embed")[0] ^= 1
    await site.publish(publisher, 2)
    with pytest.raises(DamagedError, match="'embed' has digest"):
        await stage.advance(NEWEST)
    assert (stage.version, stage.fallbacks) == (0, 1)
    await follow(stage, 2)


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
    await follow(stage, 0)
    await site.publish(publisher, 1, 2)
    assert [(manifest.version, manifest.encoding) for manifest in await site.plan(client, held=1)] == [
        (3, WeightEncoding.FULL_RAW)
    ]
    await follow(stage, 2)


async def test_workers_behind_a_relay_follow_and_each_blob_leaves_the_hub_once(site, client, tmp_path):
    publisher = await site.open()
    upstream = _Counting(client, leaving := [])
    upstream.await_version = client.await_version
    async with (
        running_relay(upstream, tmp_path / "relay") as relay,
        WeightClient(relay.address) as first,
        WeightClient(relay.address) as second,
    ):
        stages = [site.worker(first, "w1"), site.worker(second, "w2")]
        for step in range(3):
            await site.publish(publisher, step)
            await first.await_version(step, 60.0)
            await asyncio.gather(*(follow(stage, step) for stage in stages))
    assert len(leaving) == len(set(leaving)) == 3
