from google.protobuf import duration_pb2 as _duration_pb2
from hetero_rl.v1 import columns_pb2 as _columns_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORTED: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORTED: FinishReason

class VersionSpan(_message.Message):
    __slots__ = ("sample", "start", "end", "weight_version")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    sample: int
    start: int
    end: int
    weight_version: int
    def __init__(self, sample: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., weight_version: _Optional[int] = ...) -> None: ...

class RoutedExperts(_message.Message):
    __slots__ = ("expert_ids", "layers", "top_k")
    EXPERT_IDS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    expert_ids: _columns_pb2.Column
    layers: int
    top_k: int
    def __init__(self, expert_ids: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., layers: _Optional[int] = ..., top_k: _Optional[int] = ...) -> None: ...

class TrajectoryBatch(_message.Message):
    __slots__ = ("group_id", "sample_indices", "lengths", "token_ids", "log_probs", "action_mask", "version_spans", "finish_reasons", "numerics_id", "generation_time", "routed_experts")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDICES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASK_FIELD_NUMBER: _ClassVar[int]
    VERSION_SPANS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TIME_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    sample_indices: _containers.RepeatedScalarFieldContainer[int]
    lengths: _columns_pb2.Column
    token_ids: _columns_pb2.Column
    log_probs: _columns_pb2.Column
    action_mask: _columns_pb2.Column
    version_spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    finish_reasons: _containers.RepeatedScalarFieldContainer[FinishReason]
    numerics_id: str
    generation_time: _duration_pb2.Duration
    routed_experts: RoutedExperts
    def __init__(self, group_id: _Optional[str] = ..., sample_indices: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., token_ids: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., log_probs: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., action_mask: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., version_spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., finish_reasons: _Optional[_Iterable[_Union[FinishReason, str]]] = ..., numerics_id: _Optional[str] = ..., generation_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., routed_experts: _Optional[_Union[RoutedExperts, _Mapping]] = ...) -> None: ...

class ScoreBatch(_message.Message):
    __slots__ = ("score_id", "log_probs", "weight_version", "numerics_id")
    SCORE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_ID_FIELD_NUMBER: _ClassVar[int]
    score_id: str
    log_probs: _columns_pb2.Column
    weight_version: int
    numerics_id: str
    def __init__(self, score_id: _Optional[str] = ..., log_probs: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., weight_version: _Optional[int] = ..., numerics_id: _Optional[str] = ...) -> None: ...
