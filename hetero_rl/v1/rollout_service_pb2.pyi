from google.protobuf import duration_pb2 as _duration_pb2
from hetero_rl.v1 import errors_pb2 as _errors_pb2
from hetero_rl.v1 import trajectory_pb2 as _trajectory_pb2
from hetero_rl.v1 import weights_pb2 as _weights_pb2
from hetero_rl.v1 import work_pb2 as _work_pb2
from hetero_rl.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NoWorkReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_WORK_REASON_UNSPECIFIED: _ClassVar[NoWorkReason]
    NO_WORK_REASON_QUEUE_EMPTY: _ClassVar[NoWorkReason]
    NO_WORK_REASON_STALENESS_GATE: _ClassVar[NoWorkReason]
    NO_WORK_REASON_WEIGHTS_TOO_OLD: _ClassVar[NoWorkReason]
    NO_WORK_REASON_DRAINING: _ClassVar[NoWorkReason]
    NO_WORK_REASON_QUARANTINED: _ClassVar[NoWorkReason]
    NO_WORK_REASON_RUN_COMPLETE: _ClassVar[NoWorkReason]
NO_WORK_REASON_UNSPECIFIED: NoWorkReason
NO_WORK_REASON_QUEUE_EMPTY: NoWorkReason
NO_WORK_REASON_STALENESS_GATE: NoWorkReason
NO_WORK_REASON_WEIGHTS_TOO_OLD: NoWorkReason
NO_WORK_REASON_DRAINING: NoWorkReason
NO_WORK_REASON_QUARANTINED: NoWorkReason
NO_WORK_REASON_RUN_COMPLETE: NoWorkReason

class Limits(_message.Message):
    __slots__ = ("max_message_bytes", "max_prompt_tokens", "max_completion_tokens", "max_group_size", "vocabulary_size")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_prompt_tokens: int
    max_completion_tokens: int
    max_group_size: int
    vocabulary_size: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., max_completion_tokens: _Optional[int] = ..., max_group_size: _Optional[int] = ..., vocabulary_size: _Optional[int] = ...) -> None: ...

class RunDescription(_message.Message):
    __slots__ = ("run_id", "model_digests", "model_files", "sampling", "limits", "latest_weight_version", "adapter_weights")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    model_digests: _worker_pb2.ModelDigests
    model_files: _containers.RepeatedCompositeFieldContainer[_weights_pb2.ModelFile]
    sampling: _work_pb2.SamplingParameters
    limits: Limits
    latest_weight_version: int
    adapter_weights: bool
    def __init__(self, run_id: _Optional[str] = ..., model_digests: _Optional[_Union[_worker_pb2.ModelDigests, _Mapping]] = ..., model_files: _Optional[_Iterable[_Union[_weights_pb2.ModelFile, _Mapping]]] = ..., sampling: _Optional[_Union[_work_pb2.SamplingParameters, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., latest_weight_version: _Optional[int] = ..., adapter_weights: bool = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: RunDescription
    def __init__(self, run: _Optional[_Union[RunDescription, _Mapping]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("run_id", "worker_name", "boot_id", "backend", "software_version", "capabilities", "numerics", "model_digests")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker_name: str
    boot_id: str
    backend: str
    software_version: str
    capabilities: _worker_pb2.Capabilities
    numerics: _worker_pb2.NumericsRecord
    model_digests: _worker_pb2.ModelDigests
    def __init__(self, run_id: _Optional[str] = ..., worker_name: _Optional[str] = ..., boot_id: _Optional[str] = ..., backend: _Optional[str] = ..., software_version: _Optional[str] = ..., capabilities: _Optional[_Union[_worker_pb2.Capabilities, _Mapping]] = ..., numerics: _Optional[_Union[_worker_pb2.NumericsRecord, _Mapping]] = ..., model_digests: _Optional[_Union[_worker_pb2.ModelDigests, _Mapping]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("worker_epoch", "lease_duration", "heartbeat_interval", "dead_after", "latest_weight_version")
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    DEAD_AFTER_FIELD_NUMBER: _ClassVar[int]
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    worker_epoch: int
    lease_duration: _duration_pb2.Duration
    heartbeat_interval: _duration_pb2.Duration
    dead_after: _duration_pb2.Duration
    latest_weight_version: int
    def __init__(self, worker_epoch: _Optional[int] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., dead_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., latest_weight_version: _Optional[int] = ...) -> None: ...

class WorkerIdentity(_message.Message):
    __slots__ = ("worker_name", "worker_epoch")
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    worker_epoch: int
    def __init__(self, worker_name: _Optional[str] = ..., worker_epoch: _Optional[int] = ...) -> None: ...

class LeaseWorkRequest(_message.Message):
    __slots__ = ("worker", "loaded_weight_version", "free_sequences", "wait")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LOADED_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FREE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerIdentity
    loaded_weight_version: int
    free_sequences: int
    wait: _duration_pb2.Duration
    def __init__(self, worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., loaded_weight_version: _Optional[int] = ..., free_sequences: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LeaseWorkResponse(_message.Message):
    __slots__ = ("leases", "no_work_reason", "min_weight_version", "latest_weight_version")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NO_WORK_REASON_FIELD_NUMBER: _ClassVar[int]
    MIN_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[_work_pb2.Lease]
    no_work_reason: NoWorkReason
    min_weight_version: int
    latest_weight_version: int
    def __init__(self, leases: _Optional[_Iterable[_Union[_work_pb2.Lease, _Mapping]]] = ..., no_work_reason: _Optional[_Union[NoWorkReason, str]] = ..., min_weight_version: _Optional[int] = ..., latest_weight_version: _Optional[int] = ...) -> None: ...

class SubmitResultsRequest(_message.Message):
    __slots__ = ("worker", "sequence", "lease_id", "final", "trajectories", "scores")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerIdentity
    sequence: int
    lease_id: str
    final: bool
    trajectories: _trajectory_pb2.TrajectoryBatch
    scores: _trajectory_pb2.ScoreBatch
    def __init__(self, worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., sequence: _Optional[int] = ..., lease_id: _Optional[str] = ..., final: bool = ..., trajectories: _Optional[_Union[_trajectory_pb2.TrajectoryBatch, _Mapping]] = ..., scores: _Optional[_Union[_trajectory_pb2.ScoreBatch, _Mapping]] = ...) -> None: ...

class SubmitResultsResponse(_message.Message):
    __slots__ = ("duplicate", "credits")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    credits: int
    def __init__(self, duplicate: bool = ..., credits: _Optional[int] = ...) -> None: ...

class SubmitBatchRequest(_message.Message):
    __slots__ = ("submissions",)
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[SubmitResultsRequest]
    def __init__(self, submissions: _Optional[_Iterable[_Union[SubmitResultsRequest, _Mapping]]] = ...) -> None: ...

class SubmissionRefusal(_message.Message):
    __slots__ = ("refusal", "message")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    refusal: _errors_pb2.Refusal
    message: str
    def __init__(self, refusal: _Optional[_Union[_errors_pb2.Refusal, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class SubmissionOutcome(_message.Message):
    __slots__ = ("receipt", "refusal")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    receipt: SubmitResultsResponse
    refusal: SubmissionRefusal
    def __init__(self, receipt: _Optional[_Union[SubmitResultsResponse, _Mapping]] = ..., refusal: _Optional[_Union[SubmissionRefusal, _Mapping]] = ...) -> None: ...

class SubmitBatchResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[SubmissionOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[SubmissionOutcome, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker", "lease_ids", "loaded_weight_version", "generated_tokens", "busy_seconds", "weight_syncs")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    LOADED_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SYNCS_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerIdentity
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    loaded_weight_version: int
    generated_tokens: int
    busy_seconds: float
    weight_syncs: _containers.RepeatedCompositeFieldContainer[_weights_pb2.WeightSync]
    def __init__(self, worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., lease_ids: _Optional[_Iterable[str]] = ..., loaded_weight_version: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., weight_syncs: _Optional[_Iterable[_Union[_weights_pb2.WeightSync, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("lost_lease_ids", "latest_weight_version", "state")
    LOST_LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    lost_lease_ids: _containers.RepeatedScalarFieldContainer[str]
    latest_weight_version: int
    state: _worker_pb2.WorkerState
    def __init__(self, lost_lease_ids: _Optional[_Iterable[str]] = ..., latest_weight_version: _Optional[int] = ..., state: _Optional[_Union[_worker_pb2.WorkerState, str]] = ...) -> None: ...

class ReportProbeRequest(_message.Message):
    __slots__ = ("worker", "result", "numerics_id")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerIdentity
    result: _weights_pb2.ProbeResult
    numerics_id: str
    def __init__(self, worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., result: _Optional[_Union[_weights_pb2.ProbeResult, _Mapping]] = ..., numerics_id: _Optional[str] = ...) -> None: ...

class ReportProbeResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("worker", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerIdentity
    reason: str
    def __init__(self, worker: _Optional[_Union[WorkerIdentity, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
