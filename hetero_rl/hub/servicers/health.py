"""`grpc.health.v1.Health`: SERVING only while the journal takes writes and the hub is not shutting down.

The service is registered under its public name over plain bytes: an installed grpcio-health-checking does not clash.
"""

import grpc

from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.context import Topic
from hetero_rl.hub.servicers.calls import RpcContext
from hetero_rl.wire.health import ServingStatus, encode_status

__all__ = ["SERVICES", "HealthServicer"]

SERVICES = (
    "hetero_rl.v1.RolloutService",
    "hetero_rl.v1.WeightService",
    "hetero_rl.v1.TrainingService",
    "hetero_rl.v1.FleetService",
)
"""Services that a check may name; an empty name asks about the hub as a whole."""

_SERVICE_TAG = 0x0A  # field 1, length-delimited


class HealthServicer:
    """Answers `Check` and `Watch`."""

    def __init__(self, core: HubCore) -> None:
        self._core = core

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server registers."""
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
            },
        )

    async def check(self, request: bytes, context: RpcContext) -> bytes:
        """The status now; NOT_FOUND for a service that the hub does not have."""
        status = self._status(request)
        if status is ServingStatus.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the hub has no such service")
        return encode_status(status)

    async def watch(self, request: bytes, context: RpcContext) -> None:
        """The status now and whenever it changes, until the hub stops."""
        told = None
        while True:
            generation = self._core.board.generation(Topic.HEALTH)
            status = self._status(request)
            if status is not told:
                await context.write(encode_status(status))
                told = status
            if not await self._core.board.wait(Topic.HEALTH, generation, None):
                break
        if told is ServingStatus.SERVING:
            await context.write(encode_status(ServingStatus.NOT_SERVING))

    def _status(self, request: bytes) -> ServingStatus:
        if _service_name(request) not in {"", *SERVICES}:
            return ServingStatus.SERVICE_UNKNOWN
        serving = self._core.writable and not self._core.board.closed
        return ServingStatus.SERVING if serving else ServingStatus.NOT_SERVING


def _service_name(request: bytes) -> str | None:
    """`HealthCheckRequest.service`; None for bytes that are no such message. Names of 128 bytes and more are unknown."""
    if not request:
        return ""
    if len(request) >= 2 and request[0] == _SERVICE_TAG and request[1] == len(request) - 2 < 128:
        return request[2:].decode(errors="replace")
    return None
