from google.protobuf import duration_pb2 as _duration_pb2
from hetero_rl.v1 import columns_pb2 as _columns_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    PURPOSE_TRAIN: _ClassVar[Purpose]
    PURPOSE_EVALUATION: _ClassVar[Purpose]
PURPOSE_UNSPECIFIED: Purpose
PURPOSE_TRAIN: Purpose
PURPOSE_EVALUATION: Purpose

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "max_new_tokens", "stop_token_ids", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ...) -> None: ...

class PromptGroup(_message.Message):
    __slots__ = ("group_id", "ordinal", "purpose", "prompt_token_ids", "group_size", "sampling", "payload", "min_weight_version")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MIN_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    ordinal: int
    purpose: Purpose
    prompt_token_ids: _columns_pb2.Column
    group_size: int
    sampling: SamplingParameters
    payload: bytes
    min_weight_version: int
    def __init__(self, group_id: _Optional[str] = ..., ordinal: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., prompt_token_ids: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., group_size: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., payload: _Optional[bytes] = ..., min_weight_version: _Optional[int] = ...) -> None: ...

class GenerateWork(_message.Message):
    __slots__ = ("group_id", "purpose", "prompt_token_ids", "sample_indices", "sampling")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDICES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    purpose: Purpose
    prompt_token_ids: _columns_pb2.Column
    sample_indices: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParameters
    def __init__(self, group_id: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., prompt_token_ids: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., sample_indices: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ...) -> None: ...

class ScoreWork(_message.Message):
    __slots__ = ("score_id", "lengths", "token_ids", "weight_version")
    SCORE_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    score_id: str
    lengths: _columns_pb2.Column
    token_ids: _columns_pb2.Column
    weight_version: int
    def __init__(self, score_id: _Optional[str] = ..., lengths: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., token_ids: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., weight_version: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "attempt", "time_to_live", "min_weight_version", "generate", "score")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LIVE_FIELD_NUMBER: _ClassVar[int]
    MIN_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    attempt: int
    time_to_live: _duration_pb2.Duration
    min_weight_version: int
    generate: GenerateWork
    score: ScoreWork
    def __init__(self, lease_id: _Optional[str] = ..., attempt: _Optional[int] = ..., time_to_live: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., min_weight_version: _Optional[int] = ..., generate: _Optional[_Union[GenerateWork, _Mapping]] = ..., score: _Optional[_Union[ScoreWork, _Mapping]] = ...) -> None: ...
