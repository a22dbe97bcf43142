from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RefusalReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_REASON_UNSPECIFIED: _ClassVar[RefusalReason]
    REFUSAL_REASON_INVALID_FIELD: _ClassVar[RefusalReason]
    REFUSAL_REASON_TOO_LARGE: _ClassVar[RefusalReason]
    REFUSAL_REASON_RUN_NOT_OPEN: _ClassVar[RefusalReason]
    REFUSAL_REASON_WRONG_RUN: _ClassVar[RefusalReason]
    REFUSAL_REASON_MODEL_MISMATCH: _ClassVar[RefusalReason]
    REFUSAL_REASON_SAMPLING_CONTRACT: _ClassVar[RefusalReason]
    REFUSAL_REASON_FENCED: _ClassVar[RefusalReason]
    REFUSAL_REASON_LEASE_LOST: _ClassVar[RefusalReason]
    REFUSAL_REASON_UNKNOWN_VERSION: _ClassVar[RefusalReason]
    REFUSAL_REASON_NOT_FOUND: _ClassVar[RefusalReason]
    REFUSAL_REASON_STORAGE_FULL: _ClassVar[RefusalReason]
    REFUSAL_REASON_NO_CREDIT: _ClassVar[RefusalReason]
    REFUSAL_REASON_DIGEST_MISMATCH: _ClassVar[RefusalReason]
    REFUSAL_REASON_QUARANTINED: _ClassVar[RefusalReason]
    REFUSAL_REASON_INCOMPATIBLE: _ClassVar[RefusalReason]
    REFUSAL_REASON_SHUTTING_DOWN: _ClassVar[RefusalReason]
    REFUSAL_REASON_STORAGE_FAILED: _ClassVar[RefusalReason]
    REFUSAL_REASON_NOT_AUTHORIZED: _ClassVar[RefusalReason]
REFUSAL_REASON_UNSPECIFIED: RefusalReason
REFUSAL_REASON_INVALID_FIELD: RefusalReason
REFUSAL_REASON_TOO_LARGE: RefusalReason
REFUSAL_REASON_RUN_NOT_OPEN: RefusalReason
REFUSAL_REASON_WRONG_RUN: RefusalReason
REFUSAL_REASON_MODEL_MISMATCH: RefusalReason
REFUSAL_REASON_SAMPLING_CONTRACT: RefusalReason
REFUSAL_REASON_FENCED: RefusalReason
REFUSAL_REASON_LEASE_LOST: RefusalReason
REFUSAL_REASON_UNKNOWN_VERSION: RefusalReason
REFUSAL_REASON_NOT_FOUND: RefusalReason
REFUSAL_REASON_STORAGE_FULL: RefusalReason
REFUSAL_REASON_NO_CREDIT: RefusalReason
REFUSAL_REASON_DIGEST_MISMATCH: RefusalReason
REFUSAL_REASON_QUARANTINED: RefusalReason
REFUSAL_REASON_INCOMPATIBLE: RefusalReason
REFUSAL_REASON_SHUTTING_DOWN: RefusalReason
REFUSAL_REASON_STORAGE_FAILED: RefusalReason
REFUSAL_REASON_NOT_AUTHORIZED: RefusalReason

class Refusal(_message.Message):
    __slots__ = ("reason", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    reason: RefusalReason
    details: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[_Union[RefusalReason, str]] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...
