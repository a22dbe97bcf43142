from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]
    DATA_TYPE_INT16: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT64: _ClassVar[DataType]

class ColumnEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_ENCODING_UNSPECIFIED: _ClassVar[ColumnEncoding]
    COLUMN_ENCODING_RAW: _ClassVar[ColumnEncoding]
    COLUMN_ENCODING_BYTE_PLANES: _ClassVar[ColumnEncoding]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_INT16: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT64: DataType
COLUMN_ENCODING_UNSPECIFIED: ColumnEncoding
COLUMN_ENCODING_RAW: ColumnEncoding
COLUMN_ENCODING_BYTE_PLANES: ColumnEncoding

class Column(_message.Message):
    __slots__ = ("data_type", "encoding", "length", "data")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    encoding: ColumnEncoding
    length: int
    data: bytes
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., encoding: _Optional[_Union[ColumnEncoding, str]] = ..., length: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
