"""A hub on disk, trainers that publish to it, and workers that follow, all in this process over real connections."""

import asyncio
import contextlib
import dataclasses
import threading
import types

import pytest
import pytest_asyncio
import torch

from hetero_rl.config.tree import WeightsConfig
from hetero_rl.hub.handlers.context import HubSettings
from hetero_rl.hub.local_blobs import LocalBlobStore
from hetero_rl.hub.server import running_hub
from hetero_rl.hub.stores.sqlite_store import SqliteStore
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


def state_after(steps):
    """A model with a tied head after some small steps, in bfloat16; the same for the same number."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(64, 32, generator=generator) * 0.02
    for _ in range(steps):
        weight += torch.randn(64, 32, generator=generator) * 2e-5
    embedding = weight.to(torch.bfloat16)
    return {"embed": embedding, "norm": torch.ones(32, dtype=torch.bfloat16), "head": embedding}


def digests_of(tensors):
    return {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in tensors if name != "head"}


class Site:
    """A hub with its directory, trainers that publish to it and workers that follow it."""

    def __init__(self, address, directory, trainer):
        self.address, self.directory, self.trainer = address, directory, trainer
        self.fetched = []

    async def open(
        self,
        *,
        resume_step=0,
        anchor_every=16,
        port=None,
        trainer=None,
        model_files=(),
        anchors="raw",
        adapters=False,
    ):
        """A trainer that opens the run; returns its publisher."""
        request = dataclasses.replace(
            REQUEST, resume_step=resume_step, model_files=model_files, adapter_weights=adapters
        )
        trainer = trainer or self.trainer
        grant = await asyncio.to_thread(trainer.open_run, request)
        return Publisher(
            types.SimpleNamespace(twin=lambda: None),
            port or trainer,
            WeightsConfig(anchor_every=anchor_every, anchor_encoding=anchors),
            probes=(),
            latest_version=grant.latest_weight_version,
            directory=self.directory / f"outgoing-{grant.trainer_epoch}",
            patience=Patience(StopSignal(threading.Event())),
            clock=WaitClock(),
        )

    async def publish(self, publisher, *steps):
        """Publishes the states after some numbers of steps."""
        for step in steps:
            await self.publish_state(publisher, step, state_after(step))

    async def publish_state(self, publisher, step, state, adapter=None):
        await asyncio.to_thread(publisher.publish, Snapshot(step, state, adapter=adapter))
        await asyncio.to_thread(publisher.settle)

    async def follow(self, stage, step, state=None):
        """Brings a worker to the latest version; fails unless it has the weights of that step bit for bit."""
        staged = await stage.advance(NEWEST)
        stage.keep(staged)
        assert digests_of(staged.tensors()) == digests_of((state or state_after(step)).items())
        assert staged.manifest.step == step
        assert staged.manifest.state_digest == state_digest(staged.manifest.tensors)

    newest = NEWEST
    join_request = JOIN
    state_after = staticmethod(state_after)

    def counting(self, client, fetched):
        """A weight service that notes the digests which are fetched."""
        return Counting(client, fetched)

    def worker(self, client, name="w"):
        """What a worker with that directory holds; the same directory again is the worker after a restart."""
        link = Link(None, PACING)
        session = types.SimpleNamespace(link=link, weights=Counting(client, self.fetched), pacing=PACING)
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


class Counting:
    """The weight service, with a list of the digests that were fetched."""

    def __init__(self, client, fetched):
        self.get_plan, self._client, self._fetched = client.get_plan, client, fetched
        self.await_version = client.await_version

    def fetch_blob(self, digest, offset):
        self._fetched.append(digest)
        return self._client.fetch_blob(digest, offset)


@contextlib.asynccontextmanager
async def running_site(directory):
    """A hub over what lies in a directory; again over the same one is the hub after a restart."""
    store = SqliteStore(directory / "journal.sqlite")
    blobs = LocalBlobStore(directory / "blobs")
    async with running_hub(store, blobs, HubSettings(max_message_bytes=2**20)) as hub:
        with TrainingClient(hub.address) as trainer:
            yield Site(hub.address, directory, trainer)


@pytest.fixture
def start_site():
    return running_site


@pytest_asyncio.fixture
async def site(tmp_path):
    async with running_site(tmp_path) as site:
        yield site


@pytest.fixture
def second_trainer(site):
    with TrainingClient(site.address) as trainer:
        yield trainer


@pytest_asyncio.fixture
async def client(site):
    async with WeightClient(site.address) as client:
        yield client
