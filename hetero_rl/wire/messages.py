"""What crosses the seams between processes, as frozen values.

Nothing past the servicers and clients sees a protobuf object; these classes mirror `proto/hetero_rl/v1`, where each
field's unit, range and meaning of absence is written down. Validation of values that came over the network is in
`hetero_rl.wire.validation`; conversion is in `hetero_rl.wire.convert`.

Shapes: S samples of one batch, N tokens in all of them, T tensors of a weight version.
"""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping

from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, UInt8Bytes

# --- work -----------------------------------------------------------------------------------------------------------


class Purpose(enum.IntEnum):
    """What the completions of a group are for."""

    TRAIN = 1
    EVALUATION = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How a completion is sampled. The portable contract is temperature 1, top_p 1, top_k 0."""

    max_new_tokens: int
    """Most tokens of one completion, the stop token included."""
    stop_token_ids: tuple[int, ...]
    """A completion ends with the first of these; it is part of the completion."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy, for evaluation only."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of tokens kept; 0 keeps everything."""
    seed: int | None = None
    """Seed of the group; None lets the engine choose."""

    @property
    def portable(self) -> bool:
        """Whether every vendor's engine reports the log-probabilities of exactly this distribution."""
        return self.temperature == 1.0 and self.top_p == 1.0 and self.top_k == 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """A prompt and how many completions of it are wanted."""

    group_id: str
    ordinal: int
    """Position in the task's data, counted from 0 for each purpose."""
    prompt_token_ids: Int32Bytes
    group_size: int
    sampling: SamplingParameters
    purpose: Purpose = Purpose.TRAIN
    payload: bytes = b""
    """The trainer's own data about the prompt; workers never see it."""
    min_weight_version: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerateWork:
    """Completions to generate."""

    group_id: str
    purpose: Purpose
    prompt_token_ids: Int32Bytes
    sample_indices: tuple[int, ...]
    sampling: SamplingParameters


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """Given tokens whose log-probabilities are wanted."""

    score_id: str
    lengths: tuple[int, ...]
    token_ids: Int32Bytes
    weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A promise to one worker that nobody else does this work until the lease ends."""

    lease_id: str
    attempt: int
    """How often this work was leased before."""
    time_to_live: float
    """Seconds."""
    min_weight_version: int
    work: GenerateWork | ScoreWork


# --- trajectories ---------------------------------------------------------------------------------------------------


class FinishReason(enum.IntEnum):
    """Why a completion ended."""

    STOP = 1
    LENGTH = 2
    ABORTED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) of sample number `sample` of a batch, sampled by one weight version."""

    sample: int
    start: int
    end: int
    weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """Expert ids [N, layers, top_k] in row-major order."""

    expert_ids: Int32Bytes
    layers: int
    top_k: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryBatch:
    """Completions of one group, column by column.

    Example: two completions of group "g7", of 2 and 1 tokens, both sampled by version 3::

        TrajectoryBatch(
            group_id="g7", sample_indices=(0, 1), lengths=(2, 1),
            token_ids=int32_column([11, 2, 2]), log_probs=float32_column([-0.5, -0.1, -2.0]),
            version_spans=(VersionSpan(0, 0, 2, 3), VersionSpan(1, 0, 1, 3)),
            finish_reasons=(FinishReason.STOP, FinishReason.STOP), numerics_id="9f…", generation_seconds=0.2)
    """

    group_id: str
    sample_indices: tuple[int, ...]
    """Index in the group of each sample, ascending, S of them."""
    lengths: tuple[int, ...]
    """Tokens of each completion, S of them, each at least 1."""
    token_ids: Int32Bytes
    """N ids: what was sampled, never re-tokenised text."""
    log_probs: Float32Bytes | None
    """N natural log-probabilities under the distribution sampled from; None for greedy evaluation."""
    version_spans: tuple[VersionSpan, ...]
    """Cover each sample without gap or overlap, in order of sample and start."""
    finish_reasons: tuple[FinishReason, ...]
    numerics_id: str
    generation_seconds: float
    action_mask: UInt8Bytes | None = None
    """N values, 1 where the policy chose the token; None: everywhere."""
    routed_experts: RoutedExperts | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBatch:
    """Log-probabilities of given tokens: L - 1 for a sequence of L tokens."""

    score_id: str
    log_probs: Float32Bytes
    weight_version: int
    numerics_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group with every completion that was asked for."""

    group: PromptGroup
    batches: tuple[TrajectoryBatch, ...]
    """One per submission; together they hold every sample index once."""
    version_steps: Mapping[int, int]
    """Optimizer steps in each weight version that occurs in the spans."""
    worker_names: tuple[str, ...]
    """Worker of each batch."""
    backends: tuple[str, ...]
    """Backend of each batch."""


class Disposition(enum.IntEnum):
    """What was done with a sequence."""

    TRAINED = 0
    MASKED = 1
    DROPPED_STALE = 2
    DROPPED_INCOMPLETE = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutcome:
    """What became of one sequence of a step; kept for every sequence of the run."""

    group_id: str
    sample_index: int
    reward: float
    advantage: float
    log_importance_ratio: float
    """Natural log of pi/mu of the whole sequence."""
    coefficient: float
    """Mean over the tokens of what multiplied the advantage."""
    mean_absolute_gap: float
    """Mean over the tokens of |log mu - log pi|."""
    max_absolute_gap: float
    lag: int
    """Lag of the oldest token in optimizer steps."""
    disposition: Disposition
    staleness_log_ratio: float | None = None
    """log pi/pi_old of the sequence; None when pi_old was not recomputed."""
    chip_log_ratio: float | None = None
    """log pi_old/mu of the sequence; None when pi_old was not recomputed."""


# --- workers --------------------------------------------------------------------------------------------------------


class WorkerState(enum.IntEnum):
    """Life cycle of a worker as the hub sees it."""

    ACTIVE = 1
    DRAINING = 2
    QUARANTINED = 3
    DEAD = 4
    LEFT = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one worker's engine can do; measured where it can be."""

    max_concurrent_sequences: int
    max_sequence_tokens: int
    scoring: bool
    in_flight_update: bool
    processed_log_probs: bool
    adapters: bool = False
    routed_experts: bool = False
    weight_encodings: tuple[int, ...] = (1,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NumericsRecord:
    """Everything that changes the numbers a backend computes."""

    engine: str
    engine_version: str
    torch_version: str
    device_vendor: str
    device_name: str
    driver_version: str
    runtime_version: str
    data_type: str
    attention_backend: str
    log_probs_mode: str
    knobs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    emulated: bool = False

    @property
    def numerics_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 over the canonical JSON of all fields."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["knobs"] = dict(self.knobs)
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelDigests:
    """Identity of a model without its weights: SHA-256, hexadecimal."""

    config: str
    tokenizer: str


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who is calling: a name, and which incarnation of it."""

    worker_name: str
    worker_epoch: int


# --- weights --------------------------------------------------------------------------------------------------------


class DataType(enum.IntEnum):
    """Element type of a tensor or column."""

    UINT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8

    @property
    def item_size(self) -> int:
        """Bytes per element."""
        return {1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 2, 7: 4, 8: 8}[self.value]


class WeightEncoding(enum.IntEnum):
    """How the bytes of a weight version are coded."""

    FULL_RAW = 1
    FULL_PLANES = 2
    ULP_DELTA = 3


@dataclasses.dataclass(frozen=True, slots=True)
class BlobReference:
    """Bytes named by their content: SHA-256, hexadecimal, and size in bytes."""

    digest: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of the model directory that a worker needs besides weights."""

    name: str
    blob: BlobReference


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a weight version."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    digest: str
    """SHA-256 of the raw little-endian bytes after this version is applied."""
    blob_index: int
    offset: int
    size: int
    """Coded bytes in the blob."""
    base_digest: str = ""
    """Digest before; empty for a full copy."""
    tied_names: tuple[str, ...] = ()
    """Other names of the same storage."""
    changed_elements: int | None = None
    """Delta: elements whose bits differ from the base; None for a full copy, or when nobody counted them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCard:
    """A few fixed sequences with the trainer's own log-probabilities under one version."""

    lengths: tuple[int, ...]
    token_ids: Int32Bytes
    log_probs: Float32Bytes
    """L - 1 for a sequence of L tokens."""
    tolerance: float
    """Largest mean absolute difference that is trusted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a worker found when it scored a probe card; differences are trainer minus worker."""

    weight_version: int
    mean_absolute_difference: float
    max_absolute_difference: float
    mean_difference: float
    tokens: int
    log_probs: Float32Bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """Everything about one weight version."""

    version: int
    step: int
    """Optimizer steps applied to these weights."""
    encoding: WeightEncoding
    tensors: tuple[TensorEntry, ...]
    blobs: tuple[BlobReference, ...]
    state_digest: str
    """SHA-256 over the tensors' names and digests in order."""
    base_version: int = 0
    probe_card: ProbeCard | None = None


# --- the run --------------------------------------------------------------------------------------------------------


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunGrant:
    """What the hub answers to a trainer that opened a run."""

    trainer_epoch: int
    latest_weight_version: int
    latest_state_digest: str
    next_train_ordinal: int
    credits: int


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


# --- the fleet ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSummary:
    """One worker as the hub sees it."""

    worker_name: str
    worker_epoch: int
    backend: str
    state: WorkerState
    state_reason: str
    capabilities: Capabilities
    numerics: NumericsRecord
    loaded_weight_version: int
    leases: int
    completions: int
    generated_tokens: int
    busy_seconds: float
    silence: float
    """Seconds since its last call."""
    last_probe: ProbeResult | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Numbers of groups in each stage."""

    queued: int = 0
    leased: int = 0
    finished: int = 0
    taken: int = 0
    committed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The run at a glance."""

    run: RunDescription | None
    step: int
    total_steps: int
    training: QueueCounts
    evaluation: QueueCounts
    counters: Mapping[str, int]
    trainer_connected: bool
    uptime: float
    """Seconds since the hub started."""
    groups_per_step: int
    max_lag: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a person may want to know."""

    sequence: int
    occurred_at: float
    """Seconds since the epoch, by the hub's clock."""
    kind: str
    worker_name: str
    message: str
