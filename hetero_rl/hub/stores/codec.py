"""Frozen messages as JSON text, for the columns of the journal that nobody queries by content.

Bytes are base64. Reading goes through pydantic: a journal that was changed by hand is refused, not trusted.
"""

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hetero_rl.errors import DamagedJournalError

__all__ = ["decode", "encode"]

T = TypeVar("T")


_REMEMBERED_CHARACTERS = 16 * 1024
_REMEMBERED_LONG_CHARACTERS = 512 * 1024
_REMEMBERED_LONG_TEXTS = 48

_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        # Bytes settings cannot be given for a dataclass itself; inside a tuple it inherits them.
        settings = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
        _adapters[kind] = TypeAdapter(tuple.__class_getitem__((kind,)), config=settings)  # type: ignore[arg-type]  # a tuple type made at run time
    return _adapters[kind]


def encode(value: object) -> str:
    """JSON of a dataclass instance."""
    return _adapter(type(value)).dump_json((value,)).decode()


def decode(kind: type[T], text: str) -> T:
    """The instance that `encode` wrote; raises DamagedJournalError when the text is not one."""
    if len(text) > _REMEMBERED_LONG_CHARACTERS:
        value: T = _decode(kind, text)
    elif len(text) > _REMEMBERED_CHARACTERS:
        value = _decode_long_again(kind, text)  # type: ignore[arg-type]  # types are hashable
    else:
        value = _decode_again(kind, text)  # type: ignore[arg-type]  # types are hashable
    return value


def _decode(kind: type[Any], text: str) -> Any:
    try:
        return _adapter(kind).validate_json(text)[0]
    except ValidationError as error:
        raise DamagedJournalError(f"the journal holds a damaged {kind.__name__}: {error}") from error


@lru_cache(maxsize=1024)
def _decode_again(kind: type[Any], text: str) -> Any:
    """`_decode` with a memory: every call of a worker reads the same few rows, and what they hold is frozen."""
    return _decode(kind, text)


@lru_cache(maxsize=_REMEMBERED_LONG_TEXTS)
def _decode_long_again(kind: type[Any], text: str) -> Any:
    """The same for a few long rows: every worker's way is planned over the manifests of all versions that are kept."""
    return _decode(kind, text)
