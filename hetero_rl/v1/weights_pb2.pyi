from hetero_rl.v1 import columns_pb2 as _columns_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WeightEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHT_ENCODING_UNSPECIFIED: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_FULL_RAW: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_FULL_PLANES: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_ULP_DELTA: _ClassVar[WeightEncoding]
WEIGHT_ENCODING_UNSPECIFIED: WeightEncoding
WEIGHT_ENCODING_FULL_RAW: WeightEncoding
WEIGHT_ENCODING_FULL_PLANES: WeightEncoding
WEIGHT_ENCODING_ULP_DELTA: WeightEncoding

class BlobReference(_message.Message):
    __slots__ = ("digest", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size: int
    def __init__(self, digest: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class ModelFile(_message.Message):
    __slots__ = ("name", "blob")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    name: str
    blob: BlobReference
    def __init__(self, name: _Optional[str] = ..., blob: _Optional[_Union[BlobReference, _Mapping]] = ...) -> None: ...

class TensorEntry(_message.Message):
    __slots__ = ("name", "data_type", "shape", "digest", "base_digest", "blob_index", "offset", "size", "tied_names", "changed_elements")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOB_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIED_NAMES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    data_type: _columns_pb2.DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    digest: str
    base_digest: str
    blob_index: int
    offset: int
    size: int
    tied_names: _containers.RepeatedScalarFieldContainer[str]
    changed_elements: int
    def __init__(self, name: _Optional[str] = ..., data_type: _Optional[_Union[_columns_pb2.DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., digest: _Optional[str] = ..., base_digest: _Optional[str] = ..., blob_index: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., tied_names: _Optional[_Iterable[str]] = ..., changed_elements: _Optional[int] = ...) -> None: ...

class ProbeCard(_message.Message):
    __slots__ = ("lengths", "token_ids", "log_probs", "tolerance")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    lengths: _columns_pb2.Column
    token_ids: _columns_pb2.Column
    log_probs: _columns_pb2.Column
    tolerance: float
    def __init__(self, lengths: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., token_ids: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., log_probs: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., tolerance: _Optional[float] = ...) -> None: ...

class ProbeResult(_message.Message):
    __slots__ = ("weight_version", "mean_absolute_difference", "max_absolute_difference", "mean_difference", "tokens", "log_probs")
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_ABSOLUTE_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MEAN_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    weight_version: int
    mean_absolute_difference: float
    max_absolute_difference: float
    mean_difference: float
    tokens: int
    log_probs: _columns_pb2.Column
    def __init__(self, weight_version: _Optional[int] = ..., mean_absolute_difference: _Optional[float] = ..., max_absolute_difference: _Optional[float] = ..., mean_difference: _Optional[float] = ..., tokens: _Optional[int] = ..., log_probs: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ...) -> None: ...

class AdapterDescription(_message.Message):
    __slots__ = ("rank", "alpha", "target_modules", "base_digest")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    rank: int
    alpha: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    base_digest: str
    def __init__(self, rank: _Optional[int] = ..., alpha: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ..., base_digest: _Optional[str] = ...) -> None: ...

class WeightManifest(_message.Message):
    __slots__ = ("version", "step", "encoding", "base_version", "tensors", "blobs", "state_digest", "probe_card", "adapter")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROBE_CARD_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    version: int
    step: int
    encoding: WeightEncoding
    base_version: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorEntry]
    blobs: _containers.RepeatedCompositeFieldContainer[BlobReference]
    state_digest: str
    probe_card: ProbeCard
    adapter: AdapterDescription
    def __init__(self, version: _Optional[int] = ..., step: _Optional[int] = ..., encoding: _Optional[_Union[WeightEncoding, str]] = ..., base_version: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorEntry, _Mapping]]] = ..., blobs: _Optional[_Iterable[_Union[BlobReference, _Mapping]]] = ..., state_digest: _Optional[str] = ..., probe_card: _Optional[_Union[ProbeCard, _Mapping]] = ..., adapter: _Optional[_Union[AdapterDescription, _Mapping]] = ...) -> None: ...

class WeightSync(_message.Message):
    __slots__ = ("weight_version", "from_version", "manifests", "fetched_bytes", "fetch_seconds", "decode_seconds", "verify_seconds", "pause_seconds", "total_seconds", "fallbacks", "relay_bypasses")
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    RELAY_BYPASSES_FIELD_NUMBER: _ClassVar[int]
    weight_version: int
    from_version: int
    manifests: int
    fetched_bytes: int
    fetch_seconds: float
    decode_seconds: float
    verify_seconds: float
    pause_seconds: float
    total_seconds: float
    fallbacks: int
    relay_bypasses: int
    def __init__(self, weight_version: _Optional[int] = ..., from_version: _Optional[int] = ..., manifests: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., fetch_seconds: _Optional[float] = ..., decode_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., pause_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., fallbacks: _Optional[int] = ..., relay_bypasses: _Optional[int] = ...) -> None: ...
