from google.protobuf import duration_pb2 as _duration_pb2
from hetero_rl.v1 import weights_pb2 as _weights_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetPlanRequest(_message.Message):
    __slots__ = ("held_version", "wanted_version", "encodings")
    HELD_VERSION_FIELD_NUMBER: _ClassVar[int]
    WANTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    held_version: int
    wanted_version: int
    encodings: _containers.RepeatedScalarFieldContainer[_weights_pb2.WeightEncoding]
    def __init__(self, held_version: _Optional[int] = ..., wanted_version: _Optional[int] = ..., encodings: _Optional[_Iterable[_Union[_weights_pb2.WeightEncoding, str]]] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("manifests",)
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[_weights_pb2.WeightManifest]
    def __init__(self, manifests: _Optional[_Iterable[_Union[_weights_pb2.WeightManifest, _Mapping]]] = ...) -> None: ...

class FetchBlobRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchBlobResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AwaitVersionRequest(_message.Message):
    __slots__ = ("after_version", "wait", "encodings")
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    after_version: int
    wait: _duration_pb2.Duration
    encodings: _containers.RepeatedScalarFieldContainer[_weights_pb2.WeightEncoding]
    def __init__(self, after_version: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., encodings: _Optional[_Iterable[_Union[_weights_pb2.WeightEncoding, str]]] = ...) -> None: ...

class AwaitVersionResponse(_message.Message):
    __slots__ = ("latest_weight_version", "manifests")
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    latest_weight_version: int
    manifests: _containers.RepeatedCompositeFieldContainer[_weights_pb2.WeightManifest]
    def __init__(self, latest_weight_version: _Optional[int] = ..., manifests: _Optional[_Iterable[_Union[_weights_pb2.WeightManifest, _Mapping]]] = ...) -> None: ...

class FollowVersionRequest(_message.Message):
    __slots__ = ("after_version", "wait", "encodings")
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    after_version: int
    wait: _duration_pb2.Duration
    encodings: _containers.RepeatedScalarFieldContainer[_weights_pb2.WeightEncoding]
    def __init__(self, after_version: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., encodings: _Optional[_Iterable[_Union[_weights_pb2.WeightEncoding, str]]] = ...) -> None: ...

class FollowVersionResponse(_message.Message):
    __slots__ = ("latest_weight_version", "manifests", "chunk")
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    latest_weight_version: int
    manifests: _containers.RepeatedCompositeFieldContainer[_weights_pb2.WeightManifest]
    chunk: FetchBlobResponse
    def __init__(self, latest_weight_version: _Optional[int] = ..., manifests: _Optional[_Iterable[_Union[_weights_pb2.WeightManifest, _Mapping]]] = ..., chunk: _Optional[_Union[FetchBlobResponse, _Mapping]] = ...) -> None: ...
