import dataclasses
import io

import pytest
from rich.console import Console

from hetero_rl.wire.messages import (
    Capabilities,
    Event,
    Limits,
    ModelDigests,
    NumericsRecord,
    QueueCounts,
    RunDescription,
    RunStatus,
    SamplingParameters,
    WorkerState,
    WorkerSummary,
)

WORKER = WorkerSummary(
    worker_name="cpu-0",
    worker_epoch=1,
    backend="cpu",
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
    busy_seconds=10.0,
    silence=0.4,
    last_probe=None,
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
    evaluation=QueueCounts(),
    counters={"invalid_results": 2, "expired_leases": 0},
    trainer_connected=True,
    uptime=75.0,
    groups_per_step=4,
    max_lag=2,
)


class Fleet:
    """A fleet service with one worker; its history is `history`."""

    def __init__(self):
        self.status = STATUS
        self.workers = (WORKER,)
        self.history: list[Event] = []
        self.asked_after: list[int] = []

    def run_status(self):
        return self.status

    def list_workers(self, *, include_gone):
        return self.workers

    def list_events(self, after_sequence, limit=0):
        self.asked_after.append(after_sequence)
        return tuple(event for event in self.history if event.sequence > after_sequence)[:limit]

    def change_worker(self, **changes):
        self.workers = (dataclasses.replace(WORKER, **changes),)

    def happen(self, count: int):
        first = len(self.history) + 1
        self.history += [
            Event(
                sequence=number,
                occurred_at=0.0,
                kind="worker_joined",
                worker_name="cpu-0",
                message=f"no. {number}",
            )
            for number in range(first, first + count)
        ]


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def text_of():
    """What a renderable looks like on a wide terminal without colours."""

    def _text_of(renderable) -> str:
        console = Console(file=io.StringIO(), width=160)
        console.print(renderable)
        return console.file.getvalue()

    return _text_of
