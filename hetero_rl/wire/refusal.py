"""How a refusal crosses the wire: one table from exception to status and reason, read in both directions.

A refused call ends with a gRPC status, a text for people and, in the trailing metadata `hetero-rl-refusal-bin`, a
`Refusal` for programs. The hub calls `to_refusal` (or `abort`); clients call `from_rpc_error`.
"""

import dataclasses
from collections.abc import Mapping
from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hetero_rl.errors import (
    DamagedError,
    DiskFullError,
    FencedError,
    HeteroRLError,
    InvalidMessageError,
    RefusedError,
    StorageError,
    UnreachableError,
)
from hetero_rl.v1 import errors_pb2

__all__ = [
    "METADATA_KEY",
    "REASON_STATUS",
    "Refusal",
    "abort",
    "carries_refusal",
    "from_rpc_error",
    "refused",
    "to_refusal",
]

METADATA_KEY = "hetero-rl-refusal-bin"

_Status = grpc.StatusCode

REASON_STATUS: Mapping[str, grpc.StatusCode] = {
    "INVALID_FIELD": _Status.INVALID_ARGUMENT,
    "TOO_LARGE": _Status.INVALID_ARGUMENT,
    "RUN_NOT_OPEN": _Status.UNAVAILABLE,
    "WRONG_RUN": _Status.FAILED_PRECONDITION,
    "MODEL_MISMATCH": _Status.FAILED_PRECONDITION,
    "SAMPLING_CONTRACT": _Status.FAILED_PRECONDITION,
    "FENCED": _Status.FAILED_PRECONDITION,
    "LEASE_LOST": _Status.FAILED_PRECONDITION,
    "UNKNOWN_VERSION": _Status.INVALID_ARGUMENT,
    "NOT_FOUND": _Status.NOT_FOUND,
    "STORAGE_FULL": _Status.RESOURCE_EXHAUSTED,
    "NO_CREDIT": _Status.RESOURCE_EXHAUSTED,
    "DIGEST_MISMATCH": _Status.DATA_LOSS,
    "QUARANTINED": _Status.FAILED_PRECONDITION,
    "INCOMPATIBLE": _Status.FAILED_PRECONDITION,
    "SHUTTING_DOWN": _Status.UNAVAILABLE,
    "STORAGE_FAILED": _Status.INTERNAL,
    "NOT_AUTHORIZED": _Status.PERMISSION_DENIED,
}
"""Status of every reason of the protocol."""

_ERROR_REASONS: tuple[tuple[type[HeteroRLError], str], ...] = (
    (FencedError, "FENCED"),
    (DiskFullError, "STORAGE_FULL"),
    (DamagedError, "DIGEST_MISMATCH"),
    (StorageError, "STORAGE_FAILED"),
)
"""Reason of every error that carries none itself; the first class that fits counts."""

# Statuses without a `Refusal` come from gRPC itself or from something between the two sides.
_BARE_REASONS: Mapping[grpc.StatusCode, str] = {
    _Status.INVALID_ARGUMENT: "INVALID_FIELD",
    _Status.FAILED_PRECONDITION: "INCOMPATIBLE",
    _Status.UNIMPLEMENTED: "INCOMPATIBLE",
    _Status.NOT_FOUND: "NOT_FOUND",
    _Status.UNAUTHENTICATED: "NOT_AUTHORIZED",
    _Status.PERMISSION_DENIED: "NOT_AUTHORIZED",
    _Status.DATA_LOSS: "DIGEST_MISMATCH",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """What a refused call ends with."""

    status: grpc.StatusCode
    text: str
    reason: str
    """Name in `RefusalReason` without its prefix."""
    details: Mapping[str, str]

    @property
    def message(self) -> errors_pb2.Refusal:
        """Reason and details as they cross the wire."""
        return errors_pb2.Refusal(reason=f"REFUSAL_REASON_{self.reason}", details=dict(self.details))

    @property
    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """The metadata that carries reason and details."""
        return ((METADATA_KEY, self.message.SerializeToString()),)


def to_refusal(error: HeteroRLError) -> Refusal | None:
    """The refusal that an error of the hub becomes; None for an error that is a fault of the hub itself.

    A `RefusedError` keeps its reason and details; a reason that the protocol does not have becomes INCOMPATIBLE. An
    `InvalidMessageError` names its field in the details.
    """
    if isinstance(error, RefusedError):
        reason = error.reason if error.reason in REASON_STATUS else "INCOMPATIBLE"
        return Refusal(REASON_STATUS[reason], str(error), reason, error.details)
    if isinstance(error, InvalidMessageError):
        reason = error.reason if error.reason in REASON_STATUS else "INVALID_FIELD"
        return Refusal(REASON_STATUS[reason], str(error), reason, {"field": error.field})
    for kind, reason in _ERROR_REASONS:
        if isinstance(error, kind):
            return Refusal(REASON_STATUS[reason], str(error), reason, {})
    return None


async def abort(context: "grpc.aio.ServicerContext[object, object]", error: HeteroRLError) -> NoReturn:
    """Ends a call of an asyncio server with the refusal that `error` stands for; re-raises a fault of the hub itself."""
    refusal = to_refusal(error)
    if refusal is None:
        raise error
    await context.abort(refusal.status, refusal.text, refusal.trailing_metadata)
    raise AssertionError("abort returned")


def from_rpc_error(error: grpc.RpcError, call: str) -> HeteroRLError:
    """The error that a client raises for a failed call.

    A refusal of the hub becomes `FencedError` or `RefusedError`. Everything that a repeat may cure (no connection, no
    answer in time, an overloaded or crashed handler) becomes `UnreachableError`.

    Args:
        error: What grpc or grpc.aio raised.
        call: Name of the call and its address, for the text.
    """
    status, text, metadata = _parts(error)
    refusal = _refusal(metadata)
    if refusal is not None:
        return refused(refusal, text)
    if status is _Status.RESOURCE_EXHAUSTED and "larger than max" in text:
        return RefusedError(f"{call}: {text}; send less at once or raise hub.max_message_bytes", "TOO_LARGE")
    if status in _BARE_REASONS:
        return RefusedError(f"{call}: {status.name}: {text}", _BARE_REASONS[status])
    return UnreachableError(f"{call}: {status.name}: {text}")


def refused(message: errors_pb2.Refusal, text: str) -> HeteroRLError:
    """The error that a client raises for a refusal.

    Args:
        message: Reason and details; a reason that this side does not know keeps its number.
        text: For people.
    """
    names = {value: name for name, value in errors_pb2.RefusalReason.items()}
    name = names.get(int(message.reason), f"REFUSAL_REASON_{int(message.reason)}")
    reason = name.removeprefix("REFUSAL_REASON_")
    return FencedError(text) if reason == "FENCED" else RefusedError(text, reason, dict(message.details))


def carries_refusal(error: grpc.RpcError) -> bool:
    """Whether a failed call was answered by a hub of hetero-rl, whatever its status."""
    return _refusal(_parts(error)[2]) is not None


def _parts(error: object) -> tuple[grpc.StatusCode, str, Mapping[str, str | bytes]]:
    if isinstance(error, grpc.aio.AioRpcError):
        pairs = error.trailing_metadata()
        return error.code(), error.details() or "", dict(pairs or ())
    if isinstance(error, grpc.Call):
        pairs = error.trailing_metadata()
        return error.code(), error.details() or "", dict(pairs or ())
    return _Status.UNKNOWN, str(error), {}


def _refusal(metadata: Mapping[str, str | bytes]) -> errors_pb2.Refusal | None:
    packed = metadata.get(METADATA_KEY)
    if not isinstance(packed, bytes):
        return None
    try:
        return errors_pb2.Refusal.FromString(packed)
    except DecodeError:
        return None
