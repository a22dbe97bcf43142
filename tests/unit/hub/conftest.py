"""A hub on a fake clock, and small well-formed messages to feed it."""

import dataclasses
import hashlib

import pytest

from hetero_rl.hub.handlers.context import HubContext, HubSettings
from hetero_rl.hub.handlers.leasing import lease_work
from hetero_rl.hub.handlers.queue import commit_step, enqueue_groups, take_batch
from hetero_rl.hub.handlers.results import submit_results
from hetero_rl.hub.handlers.runs import open_run
from hetero_rl.hub.handlers.versions import publish_version
from hetero_rl.hub.handlers.workers import join
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import (
    BlobReference,
    Capabilities,
    DataType,
    Disposition,
    FinishReason,
    JoinRequest,
    Lease,
    Limits,
    ModelDigests,
    NumericsRecord,
    ProbeCard,
    PromptGroup,
    Purpose,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    Submission,
    TensorEntry,
    TrajectoryBatch,
    VersionSpan,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
)

DIGESTS = ModelDigests(config="c" * 64, tokenizer="d" * 64)
SAMPLING = SamplingParameters(max_new_tokens=8, stop_token_ids=(2,))
NUMERICS = NumericsRecord(
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
)


class FakeClock:
    """Time that moves when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def wall(self):
        return 1.7e9 + self.now

    def advance(self, seconds):
        self.now += seconds


class Messages:
    """Small well-formed messages."""

    digests = DIGESTS
    numerics = NUMERICS
    sampling = SAMPLING

    def run_request(self, **changes):
        request = RunRequest(
            run_id="run",
            groups_per_step=2,
            max_lag=1,
            total_steps=10,
            model_digests=DIGESTS,
            model_files=(),
            sampling=SAMPLING,
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
        return dataclasses.replace(request, **changes)

    def group(self, ordinal, purpose=Purpose.TRAIN, **changes):
        prefix = "g" if purpose is Purpose.TRAIN else "e"
        group = PromptGroup(
            group_id=f"{prefix}{ordinal}",
            ordinal=ordinal,
            prompt_token_ids=int32_column([5, 6, 7]),
            group_size=2,
            sampling=SAMPLING,
            purpose=purpose,
            payload=b"answer",
        )
        return dataclasses.replace(group, **changes)

    def join_request(self, name="w1", **changes):
        request = JoinRequest(
            run_id="run",
            worker_name=name,
            boot_id=f"boot-of-{name}",
            backend="cpu",
            software_version="0",
            capabilities=Capabilities(
                max_concurrent_sequences=8,
                max_sequence_tokens=64,
                scoring=True,
                in_flight_update=True,
                processed_log_probs=False,
            ),
            numerics=NUMERICS,
            model_digests=DIGESTS,
        )
        return dataclasses.replace(request, **changes)

    def weights(self, version):
        """Bytes of a version: one tensor of two float32."""
        return float32_column([version, version + 0.5])

    def blob(self, version):
        data = self.weights(version)
        return BlobReference(hashlib.sha256(data).hexdigest(), len(data))

    def manifest(self, version, step=None, tolerance=None):
        blob = self.blob(version)
        card = None
        if tolerance is not None:
            card = ProbeCard(
                lengths=(2,),
                token_ids=int32_column([5, 6]),
                log_probs=float32_column([-1.0]),
                tolerance=tolerance,
            )
        tensors = (
            TensorEntry(
                name="t",
                data_type=DataType.FLOAT32,
                shape=(2,),
                digest=blob.digest,
                blob_index=0,
                offset=0,
                size=blob.size,
            ),
        )
        return WeightManifest(
            version=version,
            step=version - 1 if step is None else step,
            encoding=WeightEncoding.FULL_RAW,
            tensors=tensors,
            blobs=(blob,),
            state_digest=state_digest(tensors),
            probe_card=card,
        )

    def batch(self, lease: Lease, version=1, indices=None, **changes):
        """Two tokens for each sample of a lease; the second is the stop token."""
        indices = tuple(lease.work.sample_indices if indices is None else indices)
        count = len(indices)
        batch = TrajectoryBatch(
            group_id=lease.work.group_id,
            sample_indices=indices,
            lengths=(2,) * count,
            token_ids=int32_column([token for index in indices for token in (10 + index, 2)]),
            log_probs=float32_column([number for index in indices for number in (-1.0 - index, -0.5)]),
            version_spans=tuple(VersionSpan(sample, 0, 2, version) for sample in range(count)),
            finish_reasons=(FinishReason.STOP,) * count,
            numerics_id=NUMERICS.numerics_id,
            generation_seconds=0.25,
        )
        return dataclasses.replace(batch, **changes)

    def submission(self, worker, sequence, lease, **changes):
        submission = Submission(
            worker=worker,
            sequence=sequence,
            lease_id=lease.lease_id,
            final=True,
            results=changes.pop("results", None) or self.batch(lease),
        )
        return dataclasses.replace(submission, **changes)

    def outcome(self, group_id, sample_index, **changes):
        outcome = SequenceOutcome(
            group_id=group_id,
            sample_index=sample_index,
            reward=1.0,
            advantage=0.5,
            log_importance_ratio=0.0,
            coefficient=1.0,
            mean_absolute_gap=0.0,
            max_absolute_gap=0.0,
            lag=0,
            disposition=Disposition.TRAINED,
        )
        return dataclasses.replace(outcome, **changes)


class Hub:
    """A hub without threads: every call is one transaction, refusals are rolled back like in the core."""

    def __init__(self, store, messages):
        self.clock = FakeClock()
        self.blobs = MemoryBlobStore()
        self.store = store
        self.messages = messages
        self.settings = HubSettings(lease_seconds=60, heartbeat_seconds=5, missed_heartbeats=3)
        self.restart()
        self.sequence = 0

    def restart(self):
        """Forgets what only lives in the process."""
        self.context = HubContext(self.store, self.clock, self.settings, self.blobs)

    def __call__(self, handler, *args, **kwargs):
        self.store.begin()
        try:
            with self.store.nested():
                return handler(self.context, *args, **kwargs)
        finally:
            self.store.commit()

    def upload(self, version):
        blob = self.messages.blob(version)
        upload = self.blobs.open_upload(blob)
        upload.write(0, self.messages.weights(version))
        upload.finish()
        upload.close()

    def publish(self, version, step=None, epoch=1, tolerance=None):
        self.upload(version)
        return self(publish_version, epoch, self.messages.manifest(version, step, tolerance))

    def open(self, **changes):
        """A run with version 1 and one worker; returns the worker's identity."""
        self(open_run, self.messages.run_request(**changes))
        self.publish(1)
        return self.join()

    def join(self, name="w1", **changes):
        grant = self(join, self.messages.join_request(name, **changes))
        return WorkerIdentity(name, grant.worker_epoch)

    def enqueue(self, *ordinals, epoch=1, **changes):
        return self(enqueue_groups, epoch, [self.messages.group(ordinal, **changes) for ordinal in ordinals])

    def lease(self, worker, version=1, free=8):
        return self(lease_work, worker, loaded_weight_version=version, free_sequences=free)

    def submit(self, worker, lease, **changes):
        self.sequence += 1
        return self(submit_results, self.messages.submission(worker, self.sequence, lease, **changes))

    def generate(self, worker, version=1, free=8):
        """Leases and completes what there is; returns the group ids."""
        grant = self.lease(worker, version, free)
        for lease in grant.leases:
            self.submit(worker, lease, results=self.messages.batch(lease, version))
        return [lease.work.group_id for lease in grant.leases]

    def train(self, step, epoch=1, log_probs=None):
        """Takes and commits a step; returns its group ids."""
        group_ids = self(take_batch, epoch, step)
        outcomes = [self.messages.outcome(group_id, index) for group_id in group_ids for index in range(2)]
        self(commit_step, epoch, step, outcomes, log_probs)
        return group_ids


@pytest.fixture
def messages():
    return Messages()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.sqlite")
    yield store
    store.close()


@pytest.fixture
def hub(store, messages):
    return Hub(store, messages)


@pytest.fixture(scope="session")
def make_hub():
    """Makes a hub over a store; for tests that need many."""
    return lambda store: Hub(store, Messages())
