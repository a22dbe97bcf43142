"""Readers of single protobuf fields that came over the network; each refusal names message, field and value."""

import enum
import functools
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from google.protobuf import duration_pb2
from google.protobuf.message import Message

from hetero_rl.v1 import columns_pb2
from hetero_rl.wire.column_codec import decode_column, plain_data
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import DataType

__all__ = [
    "column_of",
    "count_of",
    "duration_to_proto",
    "finite_of",
    "member_of",
    "members_of",
    "name_of",
    "optional_column_of",
    "require",
    "seconds_of",
]

_Enum = TypeVar("_Enum", bound=enum.IntEnum)
_NANOS = 1_000_000_000
_MAX_SECONDS = 315_576_000_000


def name_of(message: Message, field: str) -> str:
    """How a field is called in an error, such as `Lease.work`."""
    return f"{message.DESCRIPTOR.name}.{field}"


def require(message: Message, field: str) -> None:
    """Refuses a message without the submessage `field`."""
    if not message.HasField(field):
        raise invalid(name_of(message, field), "is missing")


def member_of(kind: type[_Enum], message: Message, field: str) -> _Enum:
    """Reads a closed enum; refuses UNSPECIFIED and values that this side does not know."""
    return _member(kind, getattr(message, field), name_of(message, field))


@functools.cache
def _by_value(kind: type[_Enum]) -> Mapping[int, _Enum]:
    """Members by value: a look-up costs a tenth of a call of the class."""
    return {member.value: member for member in kind}


def members_of(kind: type[_Enum], values: Iterable[int], name: str) -> tuple[_Enum, ...]:
    """Reads a repeated closed enum."""
    try:
        return tuple(map(_by_value(kind).__getitem__, values))
    except KeyError:
        # Which one it is costs a name for each.
        return tuple(_member(kind, value, f"{name}[{index}]") for index, value in enumerate(values))


def _member(kind: type[_Enum], value: int, name: str) -> _Enum:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(f"{member.name} ({member.value})" for member in kind)
        raise invalid(name, f"is {int(value)}, known are {known}") from error


def finite_of(message: Message, field: str) -> float:
    """Reads a number; refuses NaN and infinity."""
    value = float(getattr(message, field))
    if not math.isfinite(value):
        raise invalid(name_of(message, field), f"is {value}, expected a finite number")
    return value


def count_of(message: Message, field: str, least: int) -> int:
    """Reads an integer that must be at least `least`."""
    value = int(getattr(message, field))
    if value < least:
        raise invalid(name_of(message, field), f"is {value}, expected at least {least}")
    return value


def duration_to_proto(seconds: float) -> duration_pb2.Duration:
    """Seconds, not negative, as a Duration; rounded to nanoseconds."""
    whole, nanos = divmod(round(seconds * _NANOS), _NANOS)
    return duration_pb2.Duration(seconds=whole, nanos=nanos)


def seconds_of(message: Message, field: str) -> float:
    """Reads a Duration as seconds; absent is 0. Refuses negative and ill-formed ones."""
    duration: duration_pb2.Duration = getattr(message, field)
    if not (0 <= duration.seconds <= _MAX_SECONDS and 0 <= duration.nanos < _NANOS):
        raise invalid(
            name_of(message, field),
            f"is {duration.seconds} s and {duration.nanos} ns, expected a duration of 0 or more",
        )
    return (duration.seconds * _NANOS + duration.nanos) / _NANOS


def column_of(
    message: Message,
    field: str,
    data_type: DataType,
    *,
    length: int | None = None,
    max_elements: int | None = None,
) -> bytes:
    """Reads a required column; with `length` it must have exactly that many elements, checked before decoding."""
    column: columns_pb2.Column = getattr(message, field)
    if column.length == length and max_elements is None and int(column.data_type) == data_type:
        data = plain_data(column, length * data_type.item_size)
        if data is not None:
            return data
    require(message, field)
    name = name_of(message, field)
    if length is not None and column.length != length:
        raise invalid(name, f"has {column.length} elements, expected {length}")
    return decode_column(column, data_type, name, max_elements=max_elements)


def optional_column_of(
    message: Message,
    field: str,
    data_type: DataType,
    *,
    length: int | None = None,
    max_elements: int | None = None,
) -> bytes | None:
    """Reads a column that may be absent."""
    if not message.HasField(field):
        return None
    return column_of(message, field, data_type, length=length, max_elements=max_elements)
