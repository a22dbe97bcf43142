"""Opening a run and joining it, and the answers of the hub."""

import dataclasses
import enum

from hetero_rl.wire.messages.trajectories import ScoreBatch, TrajectoryBatch
from hetero_rl.wire.messages.weights import ModelFile, WeightSync
from hetero_rl.wire.messages.work import Lease, SamplingParameters
from hetero_rl.wire.messages.workers import (
    Capabilities,
    ModelDigests,
    NumericsRecord,
    WorkerIdentity,
    WorkerState,
)

__all__ = [
    "EnqueueReceipt",
    "Heartbeat",
    "HeartbeatReply",
    "JoinGrant",
    "JoinRequest",
    "LeaseGrant",
    "Limits",
    "NoWorkReason",
    "RunDescription",
    "RunGrant",
    "RunRequest",
    "Submission",
    "SubmissionReceipt",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest things that the hub accepts."""

    max_message_bytes: int
    max_prompt_tokens: int
    max_completion_tokens: int
    max_group_size: int
    vocabulary_size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What a run samples with and what its workers load."""

    run_id: str
    model_digests: ModelDigests
    model_files: tuple[ModelFile, ...]
    sampling: SamplingParameters
    limits: Limits
    latest_weight_version: int
    adapter_weights: bool = False
    """Whether versions hold a frozen base and adapters."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a trainer opens a run with."""

    run_id: str
    groups_per_step: int
    max_lag: int
    total_steps: int
    model_digests: ModelDigests
    model_files: tuple[ModelFile, ...]
    sampling: SamplingParameters
    limits: Limits
    config_json: str
    software_version: str
    resume_step: int = 0
    adapter_weights: bool = False
    """Whether versions hold a frozen base and adapters, which not every worker loads."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunGrant:
    """What the hub answers to a trainer that opened a run."""

    trainer_epoch: int
    latest_weight_version: int
    latest_state_digest: str
    next_train_ordinal: int
    credits: int
    adapter_weights: bool = False
    """The request's, as a hub echoes it that knows of such versions."""


class NoWorkReason(enum.IntEnum):
    """Why there was no work."""

    QUEUE_EMPTY = 1
    STALENESS_GATE = 2
    WEIGHTS_TOO_OLD = 3
    DRAINING = 4
    QUARANTINED = 5
    RUN_COMPLETE = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What a worker says of itself when it joins."""

    run_id: str
    worker_name: str
    boot_id: str
    backend: str
    software_version: str
    capabilities: Capabilities
    numerics: NumericsRecord
    model_digests: ModelDigests


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JoinGrant:
    """What the hub answers to a worker that joined. Durations are in seconds."""

    worker_epoch: int
    lease_duration: float
    heartbeat_interval: float
    dead_after: float
    latest_weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """Leased work, or why there is none."""

    leases: tuple[Lease, ...]
    no_work_reason: NoWorkReason | None
    min_weight_version: int
    latest_weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Results of a lease; its identity is (run, worker name, worker epoch, sequence)."""

    worker: WorkerIdentity
    sequence: int
    lease_id: str
    final: bool
    results: TrajectoryBatch | ScoreBatch


@dataclasses.dataclass(frozen=True, slots=True)
class SubmissionReceipt:
    """What the hub answers to a submission that is on disk."""

    duplicate: bool
    credits: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Signs of life of a worker."""

    worker: WorkerIdentity
    lease_ids: tuple[str, ...]
    loaded_weight_version: int
    generated_tokens: int
    busy_seconds: float
    weight_syncs: tuple[WeightSync, ...] = ()
    """Versions that the worker came to and has not reported yet, oldest first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """What the hub answers to a heartbeat."""

    lost_lease_ids: tuple[str, ...]
    latest_weight_version: int
    state: WorkerState


@dataclasses.dataclass(frozen=True, slots=True)
class EnqueueReceipt:
    """What the hub answers to enqueued groups."""

    accepted: int
    credits: int
