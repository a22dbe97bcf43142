from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_ACTIVE: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_QUARANTINED: _ClassVar[WorkerState]
    WORKER_STATE_DEAD: _ClassVar[WorkerState]
    WORKER_STATE_LEFT: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_ACTIVE: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_QUARANTINED: WorkerState
WORKER_STATE_DEAD: WorkerState
WORKER_STATE_LEFT: WorkerState

class Capabilities(_message.Message):
    __slots__ = ("max_concurrent_sequences", "max_sequence_tokens", "scoring", "in_flight_update", "processed_log_probs", "adapters", "routed_experts", "weight_encodings")
    MAX_CONCURRENT_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_UPDATE_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    max_concurrent_sequences: int
    max_sequence_tokens: int
    scoring: bool
    in_flight_update: bool
    processed_log_probs: bool
    adapters: bool
    routed_experts: bool
    weight_encodings: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_concurrent_sequences: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ..., scoring: bool = ..., in_flight_update: bool = ..., processed_log_probs: bool = ..., adapters: bool = ..., routed_experts: bool = ..., weight_encodings: _Optional[_Iterable[int]] = ...) -> None: ...

class NumericsRecord(_message.Message):
    __slots__ = ("numerics_id", "engine", "engine_version", "torch_version", "device_vendor", "device_name", "driver_version", "runtime_version", "data_type", "attention_backend", "log_probs_mode", "knobs", "emulated")
    class KnobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_VENDOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    numerics_id: str
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
    knobs: _containers.ScalarMap[str, str]
    emulated: bool
    def __init__(self, numerics_id: _Optional[str] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., torch_version: _Optional[str] = ..., device_vendor: _Optional[str] = ..., device_name: _Optional[str] = ..., driver_version: _Optional[str] = ..., runtime_version: _Optional[str] = ..., data_type: _Optional[str] = ..., attention_backend: _Optional[str] = ..., log_probs_mode: _Optional[str] = ..., knobs: _Optional[_Mapping[str, str]] = ..., emulated: bool = ...) -> None: ...

class ModelDigests(_message.Message):
    __slots__ = ("config", "tokenizer")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    config: str
    tokenizer: str
    def __init__(self, config: _Optional[str] = ..., tokenizer: _Optional[str] = ...) -> None: ...
