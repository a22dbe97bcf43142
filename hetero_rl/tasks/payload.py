"""Grader payloads as JSON that keeps what JSON alone would lose.

Scorers compare tuples with tuples and look things up under integer keys. Those are written as tagged objects:
a tuple as {"$tuple": [...]}, a mapping whose keys are not all plain strings as {"$pairs": [[key, value], ...]}.
"""

import enum
import json
from typing import Any

from hetero_rl.errors import TaskError

__all__ = ["MAX_PAYLOAD_BYTES", "decode_payload", "encode_payload"]

MAX_PAYLOAD_BYTES = 2**20
"""The protocol's limit on the trainer's own data about a prompt."""
_TUPLE, _PAIRS = "$tuple", "$pairs"


def encode_payload(value: Any, what: str) -> bytes:
    """JSON bytes of a value made of None, booleans, numbers, strings, lists, tuples and mappings.

    Raises:
        TaskError: If `what` holds anything else, or is larger than the protocol carries.
    """
    try:
        encoded = json.dumps(_tag(value), separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise TaskError(f"{what} cannot be handed to a grader as JSON: {error}") from error
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise TaskError(f"{what} takes {len(encoded)} bytes; the protocol carries {MAX_PAYLOAD_BYTES}")
    return encoded


def decode_payload(encoded: bytes) -> Any:
    """The value that `encode_payload` was given."""
    return _untag(json.loads(encoded))


def _tag(value: Any) -> Any:
    match value:
        case enum.Enum():
            return _tag(value.value)
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return {_TUPLE: [_tag(element) for element in value]}
        case list():
            return [_tag(element) for element in value]
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): _tag(element) for key, element in value.items()}
        case dict():
            return {_PAIRS: [[_tag(key), _tag(element)] for key, element in value.items()]}
    raise TypeError(f"a value of type {type(value).__name__}")


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(element) for element in value]
    if isinstance(value, dict):
        if _TUPLE in value:
            return tuple(_untag(element) for element in value[_TUPLE])
        if _PAIRS in value:
            return {_untag(key): _untag(element) for key, element in value[_PAIRS]}
        return {key: _untag(element) for key, element in value.items()}
    return value
