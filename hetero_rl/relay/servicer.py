"""`WeightService` as a relay speaks it: the hub's answers, and the relay's own copies of the bytes."""

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from hetero_rl.errors import HeteroRLError, UnreachableError
from hetero_rl.hub.servicers.calls import RpcContext, Undecodable
from hetero_rl.relay.cache import RelayCache
from hetero_rl.relay.upstream import Upstream
from hetero_rl.v1 import weight_service_pb2 as pb
from hetero_rl.wire.chunks import encode_chunk
from hetero_rl.wire.convert import fields, weights
from hetero_rl.wire.health import ServingStatus, encode_status
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.refusal import abort

__all__ = ["RelayServicer", "health_handler"]

T = TypeVar("T")

_MOST_SECONDS = 30.0

_logger = logging.getLogger(__name__)


def _refusing(method: Callable[[Any, Any, Any], Awaitable[T]]) -> Callable[[Any, Any, Any], Awaitable[T]]:
    """Ends a call with the refusal that an error stands for; what does not reach the hub is UNAVAILABLE."""

    @functools.wraps(method)
    async def guarded(servicer: Any, request: Any, context: RpcContext) -> T:
        try:
            if isinstance(request, Undecodable):
                raise invalid(method.__name__, request.problem)
            return await method(servicer, request, context)
        except UnreachableError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort returned") from error
        except HeteroRLError as error:
            _logger.info("%s refused: %s", method.__name__, error)
            return await abort(context, error)

    return guarded


class RelayServicer:
    """Translates between messages, the hub's answers and cached blobs.

    Args:
        upstream: The hub.
        cache: The blobs.
    """

    def __init__(self, upstream: Upstream, cache: RelayCache) -> None:
        self._upstream = upstream
        self._cache = cache

    @_refusing
    async def GetPlan(self, request: pb.GetPlanRequest, context: RpcContext) -> pb.GetPlanResponse:
        """See the protocol."""
        encodings = weights.weight_encodings_from_proto(request.encodings)
        manifests = await self._upstream.get_plan(request.held_version, request.wanted_version, encodings)
        return pb.GetPlanResponse(manifests=[weights.manifest_to_proto(manifest) for manifest in manifests])

    @_refusing
    async def FetchBlob(self, request: pb.FetchBlobRequest, context: RpcContext) -> None:
        """See the protocol."""
        offset = request.offset
        async with self._cache.reading(request.digest) as reader:
            while chunk := await reader.read(offset):
                await context.write(encode_chunk(offset, chunk))
                offset += len(chunk)

    @_refusing
    async def AwaitVersion(
        self, request: pb.AwaitVersionRequest, context: RpcContext
    ) -> pb.AwaitVersionResponse:
        """See the protocol."""
        wait = min(fields.seconds_of(request, "wait"), _MOST_SECONDS)
        latest = await self._upstream.await_version(request.after_version, wait)
        return pb.AwaitVersionResponse(latest_weight_version=latest)

    @_refusing
    async def FollowVersion(self, request: pb.FollowVersionRequest, context: RpcContext) -> None:
        """See the protocol; the news only, as a relay does not know the way."""
        wait = min(fields.seconds_of(request, "wait"), _MOST_SECONDS)
        latest = await self._upstream.await_version(request.after_version, wait)
        await context.write(pb.FollowVersionResponse(latest_weight_version=latest))


def health_handler() -> grpc.GenericRpcHandler:
    """`Check` of `grpc.health.v1`: a relay that answers serves."""

    async def check(_request: bytes, _context: RpcContext) -> bytes:  # ruff: ignore[unused-async] gRPC awaits it
        return encode_status(ServingStatus.SERVING)

    handlers: dict[str, Any] = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)
