from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from hetero_rl.v1 import rollout_service_pb2 as _rollout_service_pb2
from hetero_rl.v1 import trajectory_pb2 as _trajectory_pb2
from hetero_rl.v1 import weights_pb2 as _weights_pb2
from hetero_rl.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerSummary(_message.Message):
    __slots__ = ("worker_name", "worker_epoch", "backend", "state", "state_reason", "capabilities", "numerics", "loaded_weight_version", "leases", "completions", "generated_tokens", "busy_seconds", "silence", "last_probe")
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    LOADED_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_PROBE_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    worker_epoch: int
    backend: str
    state: _worker_pb2.WorkerState
    state_reason: str
    capabilities: _worker_pb2.Capabilities
    numerics: _worker_pb2.NumericsRecord
    loaded_weight_version: int
    leases: int
    completions: int
    generated_tokens: int
    busy_seconds: float
    silence: _duration_pb2.Duration
    last_probe: _weights_pb2.ProbeResult
    def __init__(self, worker_name: _Optional[str] = ..., worker_epoch: _Optional[int] = ..., backend: _Optional[str] = ..., state: _Optional[_Union[_worker_pb2.WorkerState, str]] = ..., state_reason: _Optional[str] = ..., capabilities: _Optional[_Union[_worker_pb2.Capabilities, _Mapping]] = ..., numerics: _Optional[_Union[_worker_pb2.NumericsRecord, _Mapping]] = ..., loaded_weight_version: _Optional[int] = ..., leases: _Optional[int] = ..., completions: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., silence: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., last_probe: _Optional[_Union[_weights_pb2.ProbeResult, _Mapping]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("include_gone",)
    INCLUDE_GONE_FIELD_NUMBER: _ClassVar[int]
    include_gone: bool
    def __init__(self, include_gone: bool = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerSummary]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerSummary, _Mapping]]] = ...) -> None: ...

class QueueCounts(_message.Message):
    __slots__ = ("queued", "leased", "finished", "taken", "committed")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    queued: int
    leased: int
    finished: int
    taken: int
    committed: int
    def __init__(self, queued: _Optional[int] = ..., leased: _Optional[int] = ..., finished: _Optional[int] = ..., taken: _Optional[int] = ..., committed: _Optional[int] = ...) -> None: ...

class GetRunStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRunStatusResponse(_message.Message):
    __slots__ = ("run", "step", "total_steps", "training", "evaluation", "counters", "trainer_connected", "uptime", "groups_per_step", "max_lag")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    GROUPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_FIELD_NUMBER: _ClassVar[int]
    run: _rollout_service_pb2.RunDescription
    step: int
    total_steps: int
    training: QueueCounts
    evaluation: QueueCounts
    counters: _containers.ScalarMap[str, int]
    trainer_connected: bool
    uptime: _duration_pb2.Duration
    groups_per_step: int
    max_lag: int
    def __init__(self, run: _Optional[_Union[_rollout_service_pb2.RunDescription, _Mapping]] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., training: _Optional[_Union[QueueCounts, _Mapping]] = ..., evaluation: _Optional[_Union[QueueCounts, _Mapping]] = ..., counters: _Optional[_Mapping[str, int]] = ..., trainer_connected: bool = ..., uptime: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., groups_per_step: _Optional[int] = ..., max_lag: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "occur_time", "kind", "worker_name", "message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OCCUR_TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    occur_time: _timestamp_pb2.Timestamp
    kind: str
    worker_name: str
    message: str
    def __init__(self, sequence: _Optional[int] = ..., occur_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., worker_name: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("after_sequence", "limit")
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    limit: int
    def __init__(self, after_sequence: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_name",)
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    def __init__(self, worker_name: _Optional[str] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QuarantineWorkerRequest(_message.Message):
    __slots__ = ("worker_name", "reason")
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    reason: str
    def __init__(self, worker_name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QuarantineWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadmitWorkerRequest(_message.Message):
    __slots__ = ("worker_name",)
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    def __init__(self, worker_name: _Optional[str] = ...) -> None: ...

class ReadmitWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestCalibrationRequest(_message.Message):
    __slots__ = ("backends", "card", "weight_version")
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    backends: _containers.RepeatedScalarFieldContainer[str]
    card: _weights_pb2.ProbeCard
    weight_version: int
    def __init__(self, backends: _Optional[_Iterable[str]] = ..., card: _Optional[_Union[_weights_pb2.ProbeCard, _Mapping]] = ..., weight_version: _Optional[int] = ...) -> None: ...

class RequestCalibrationResponse(_message.Message):
    __slots__ = ("score_ids",)
    SCORE_IDS_FIELD_NUMBER: _ClassVar[int]
    score_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, score_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetScoreRequest(_message.Message):
    __slots__ = ("score_id",)
    SCORE_ID_FIELD_NUMBER: _ClassVar[int]
    score_id: str
    def __init__(self, score_id: _Optional[str] = ...) -> None: ...

class GetScoreResponse(_message.Message):
    __slots__ = ("worker_name", "scores", "failure")
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    worker_name: str
    scores: _trajectory_pb2.ScoreBatch
    failure: str
    def __init__(self, worker_name: _Optional[str] = ..., scores: _Optional[_Union[_trajectory_pb2.ScoreBatch, _Mapping]] = ..., failure: _Optional[str] = ...) -> None: ...
