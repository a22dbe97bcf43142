"""The stores under test, and small rows to put into them. A new store joins by adding itself to `STORES`."""

import dataclasses

import pytest

from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.hub.stores.records import (
    RunRecord,
    RunState,
    SequenceRow,
    StepCommit,
    SubmissionId,
)
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import (
    BlobReference,
    Capabilities,
    DataType,
    Disposition,
    FinishReason,
    JoinRequest,
    Limits,
    ModelDigests,
    NumericsRecord,
    ProbeCard,
    PromptGroup,
    Purpose,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    TensorEntry,
    TrajectoryBatch,
    VersionSpan,
    WeightEncoding,
    WeightManifest,
)

SAMPLING = SamplingParameters(max_new_tokens=8, stop_token_ids=(2, 3), seed=2**63)
RUN = RunRecord(
    request=RunRequest(
        run_id="run",
        groups_per_step=2,
        max_lag=1,
        total_steps=10,
        model_digests=ModelDigests("c" * 64, "d" * 64),
        model_files=(),
        sampling=SAMPLING,
        limits=Limits(
            max_message_bytes=2**20,
            max_prompt_tokens=16,
            max_completion_tokens=8,
            max_group_size=4,
            vocabulary_size=100,
        ),
        config_json='{"a": "ä"}',
        software_version="0",
    ),
    trainer_epoch=1,
    state=RunState.OPEN,
)
JOIN = JoinRequest(
    run_id="run",
    worker_name="w1",
    boot_id="boot",
    backend="cpu",
    software_version="0",
    capabilities=Capabilities(
        max_concurrent_sequences=8,
        max_sequence_tokens=64,
        scoring=True,
        in_flight_update=True,
        processed_log_probs=False,
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
        knobs={"threads": "1"},
    ),
    model_digests=ModelDigests("c" * 64, "d" * 64),
)
STORES = ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.sqlite")
    store.begin()
    yield store
    store.rollback()
    store.close()


@pytest.fixture
def sqlite_path(tmp_path):
    return tmp_path / "journal.sqlite"


class Rows:
    """Small well-formed rows."""

    run = RUN
    join = JOIN

    def prompt(self, group_id="g0", ordinal=0, purpose=Purpose.TRAIN):
        return PromptGroup(
            group_id=group_id,
            ordinal=ordinal,
            prompt_token_ids=int32_column([5, 6]),
            group_size=2,
            sampling=SAMPLING,
            purpose=purpose,
            payload=b"\x00answer",
            min_weight_version=3,
        )

    def trajectories(self, group_id="g0", **changes):
        batch = TrajectoryBatch(
            group_id=group_id,
            sample_indices=(0, 1),
            lengths=(2, 1),
            token_ids=int32_column([11, 2, 2]),
            log_probs=float32_column([-0.5, -0.25, -2.0]),
            version_spans=(VersionSpan(0, 0, 1, 3), VersionSpan(0, 1, 2, 4), VersionSpan(1, 0, 1, 4)),
            finish_reasons=(FinishReason.STOP, FinishReason.LENGTH),
            numerics_id="n",
            generation_seconds=0.5,
        )
        return dataclasses.replace(batch, **changes)

    def sequence(self, group_id="g0", sample_index=0):
        return SequenceRow(
            group_id=group_id,
            sample_index=sample_index,
            length=2 - sample_index,
            finish_reason=FinishReason(1 + sample_index),
            oldest_version=3,
            newest_version=4,
            oldest_step=2,
            newest_step=3,
        )

    def submit(self, store, number=1, group_id="g0", batch=None):
        key = SubmissionId("w1", 1, number)
        rows = [self.sequence(group_id, index) for index in (0, 1)]
        store.add_submission(key, "lease", "cpu", batch or self.trajectories(group_id), rows)
        return key

    def outcome(self, group_id="g0", sample_index=0, **changes):
        row = SequenceOutcome(
            group_id=group_id,
            sample_index=sample_index,
            reward=1.0,
            advantage=-0.5,
            log_importance_ratio=0.1,
            coefficient=0.9,
            mean_absolute_gap=0.01,
            max_absolute_gap=0.5,
            lag=1,
            disposition=Disposition.MASKED,
            chip_log_ratio=0.2,
        )
        return dataclasses.replace(row, **changes)

    def commit(self, step, **changes):
        row = StepCommit(
            step=step, trainer_epoch=1, committed_at=5.0, outcomes=(self.outcome(),), log_probs=b"abcd"
        )
        return dataclasses.replace(row, **changes)

    def manifest(self, version, step=0):
        return WeightManifest(
            version=version,
            step=step,
            encoding=WeightEncoding.FULL_RAW,
            tensors=(
                TensorEntry(
                    name="t",
                    data_type=DataType.BFLOAT16,
                    shape=(2, 3),
                    digest="e" * 64,
                    blob_index=0,
                    offset=0,
                    size=12,
                    tied_names=("u",),
                ),
            ),
            blobs=(BlobReference("f" * 64, 12),),
            state_digest="s",
            probe_card=ProbeCard(
                lengths=(2,),
                token_ids=int32_column([1, 2]),
                log_probs=float32_column([-1.0]),
                tolerance=0.1,
            ),
        )


@pytest.fixture
def rows():
    return Rows()
