import dataclasses

import pytest

from hetero_rl.metrics.fleet import FleetState
from hetero_rl.wire.messages import (
    Capabilities,
    Event,
    Limits,
    ModelDigests,
    NumericsRecord,
    ProbeResult,
    QueueCounts,
    RunDescription,
    RunStatus,
    SamplingParameters,
    WorkerState,
    WorkerSummary,
)

WORKER = WorkerSummary(
    worker_name="ascend-0",
    worker_epoch=1,
    backend="ascend",
    state=WorkerState.ACTIVE,
    state_reason="",
    capabilities=Capabilities(
        max_concurrent_sequences=64,
        max_sequence_tokens=256,
        scoring=True,
        in_flight_update=True,
        processed_log_probs=True,
    ),
    numerics=NumericsRecord(
        engine="transformers",
        engine_version="5",
        torch_version="2",
        device_vendor="cpu",
        device_name="a CPU",
        driver_version="",
        runtime_version="",
        data_type="float32",
        attention_backend="sdpa",
        log_probs_mode="processed",
    ),
    loaded_weight_version=7,
    leases=2,
    completions=96,
    generated_tokens=12_000,
    busy_seconds=10.5,
    silence=0.25,
    last_probe=ProbeResult(
        weight_version=7,
        mean_absolute_difference=0.03,
        max_absolute_difference=0.1,
        mean_difference=0.0,
        tokens=64,
    ),
)

STATUS = RunStatus(
    run=RunDescription(
        run_id="quickstart",
        model_digests=ModelDigests("c" * 64, "t" * 64),
        model_files=(),
        sampling=SamplingParameters(max_new_tokens=8, stop_token_ids=(0,)),
        limits=Limits(
            max_message_bytes=1,
            max_prompt_tokens=1,
            max_completion_tokens=1,
            max_group_size=1,
            vocabulary_size=1,
        ),
        latest_weight_version=8,
    ),
    step=7,
    total_steps=20,
    training=QueueCounts(queued=3, leased=2, finished=1, taken=4, committed=28),
    evaluation=QueueCounts(committed=5),
    counters={"leases_expired": 2},
    trainer_connected=True,
    uptime=75.0,
    groups_per_step=4,
    max_lag=2,
)


def event(sequence, kind):
    return Event(sequence=sequence, occurred_at=0.0, kind=kind, worker_name="", message="")


@pytest.fixture
def state():
    gone = dataclasses.replace(WORKER, worker_name="ascend-1", state=WorkerState.LEFT)
    return FleetState(status=STATUS, workers=(WORKER, gone), writable=True)


@pytest.fixture
def happen():
    return event
