"""What every servicer does with a call: convert, ask the core, refuse in the words of the protocol.

A long poll holds no thread:

    servicer ── generation of the topic ── core.run(handler) ── nothing yet ──► board.wait(topic) ──┐
        ▲                                                                                           │ changed
        └───────────────────────────────────────────────────────────────────────────────────────────┘
    ends with: an answer, the end of the wait, the caller's cancellation, or the shutdown of the hub
"""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hetero_rl.errors import HeteroRLError, InvalidMessageError, RefusedError
from hetero_rl.hub.core import HubCore, counter_of
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.wire.chunks import message_or_bytes
from hetero_rl.wire.refusal import abort

__all__ = ["RpcContext", "TolerantDecoding", "Undecodable", "check_decoded", "poll", "refusing", "unpack"]

T = TypeVar("T")
RpcContext = grpc.aio.ServicerContext[Any, Any]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a request whose bytes are no message."""

    problem: str


class TolerantDecoding(grpc.aio.ServerInterceptor):
    """Hands undecodable bytes to the servicer as `Undecodable`, which `refusing` answers with INVALID_ARGUMENT.

    gRPC itself would end such a call with UNKNOWN, which reads like a fault of the hub. A stream's responses may be bytes
    that are coded already (`hetero_rl.wire.chunks`).
    """

    async def intercept_service(  # ruff: ignore[no-self-use] gRPC calls it as a method
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Replaces the coding of the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        handler = handler._replace(request_deserializer=_tolerant(handler.request_deserializer))
        if handler.response_streaming and handler.response_serializer is not None:
            handler = handler._replace(response_serializer=message_or_bytes(handler.response_serializer))
        return handler


def _tolerant(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError as error:
            return Undecodable(str(error))

    return decode


def check_decoded(request: object) -> None:
    """Refuses a request that is no message."""
    if isinstance(request, Undecodable):
        raise _MalformedError(InvalidMessageError(request.problem))


class _MalformedError(Exception):
    """A message that no handler saw."""

    def __init__(self, error: InvalidMessageError) -> None:
        super().__init__(str(error))
        self.error = error


def unpack(convert: Callable[..., T], message: object, **settings: Any) -> T:
    """Converts a message; what is wrong with it is counted and refused by `refusing`."""
    try:
        return convert(message, **settings)
    except InvalidMessageError as error:
        raise _MalformedError(error) from error


def refusing(method: Callable[[Any, Any, Any], Awaitable[T]]) -> Callable[[Any, Any, Any], Awaitable[T]]:
    """Ends a call with the refusal that an error of ours stands for. The servicer has its core in `core`."""

    @functools.wraps(method)
    async def guarded(servicer: Any, request: Any, context: RpcContext) -> T:
        try:
            check_decoded(request)
            return await method(servicer, request, context)
        except _MalformedError as malformed:
            error: HeteroRLError = malformed.error
            await servicer.core.run(_count, counter_of(malformed.error))
        except HeteroRLError as refused:
            error = refused
        waits = isinstance(error, RefusedError) and error.reason == "RUN_NOT_OPEN"
        _logger.log(logging.DEBUG if waits else logging.INFO, "%s refused: %s", method.__name__, error)
        return await abort(context, error)

    return guarded


def _count(context: HubContext, name: str) -> None:
    context.store.count(name)


async def poll(
    core: HubCore,
    topic: Topic,
    wait: float,
    attempt: Callable[[bool], Awaitable[T]],
    ready: Callable[[T], bool],
) -> T:
    """Repeats `attempt` whenever `topic` changed, until its answer is ready or `wait` seconds are over.

    Args:
        core: Where the attempts run.
        topic: What the answer depends on.
        wait: Seconds.
        attempt: Asks the core; its argument says whether this is a repetition.
        ready: Whether an answer ends the waiting.
    """
    until = asyncio.get_running_loop().time() + wait
    repeated = False
    while True:
        generation = core.board.generation(topic)
        answer = await attempt(repeated)
        if ready(answer) or not await core.board.wait(topic, generation, until):
            return answer
        repeated = True
