"""The answer of `grpc.health.v1`, written out: the protocol is small and its package would pin protobuf."""

import enum

__all__ = ["CHECK_METHOD", "ServingStatus", "decode_status", "encode_status"]

CHECK_METHOD = "/grpc.health.v1.Health/Check"

_STATUS_TAG = 0x08  # field 1, varint


class ServingStatus(enum.IntEnum):
    """`HealthCheckResponse.ServingStatus`."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def encode_status(status: ServingStatus) -> bytes:
    """A `HealthCheckResponse`."""
    return bytes([_STATUS_TAG, status]) if status else b""


def decode_status(response: bytes) -> ServingStatus:
    """Reads a `HealthCheckResponse`; anything else than the known form is UNKNOWN."""
    if len(response) == 2 and response[0] == _STATUS_TAG and response[1] in set(ServingStatus):
        return ServingStatus(response[1])
    return ServingStatus.UNKNOWN
