"""gRPC interceptors that carry a caller's span in metadata (`hetero_rl.telemetry.tracing`). In use only while something is traced."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from hetero_rl.telemetry.tracing import current_metadata, use_caller

__all__ = ["CallerContext", "async_interceptors", "blocking_interceptor"]


def _with_span(details: Any) -> Any:
    added = current_metadata()
    if not added:
        return details
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), *added))


class _Blocking(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Adds the span to calls of a blocking channel."""

    def intercept_unary_unary(  # ruff: ignore[no-self-use] gRPC calls it as a method
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(_with_blocking_span(client_call_details), request)

    intercept_unary_stream = intercept_unary_unary

    def intercept_stream_unary(  # ruff: ignore[no-self-use] gRPC calls it as a method
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(_with_blocking_span(client_call_details), request_iterator)


class _Details(grpc.ClientCallDetails):
    """gRPC's own details are no tuple on a blocking channel."""

    def __init__(self, given: Any, metadata: Sequence[tuple[str, str]]) -> None:
        for name in ("method", "timeout", "credentials", "wait_for_ready", "compression"):
            setattr(self, name, getattr(given, name, None))
        self.metadata = tuple(metadata)


def _with_blocking_span(details: Any) -> Any:
    added = current_metadata()
    return _Details(details, (*(details.metadata or ()), *added)) if added else details


class _AsyncUnary(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(  # ruff: ignore[no-self-use] gRPC calls it as a method
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_with_span(client_call_details), request)


def blocking_interceptor() -> grpc.UnaryUnaryClientInterceptor:
    """For `grpc.intercept_channel`."""
    return _Blocking()


def async_interceptors() -> list[grpc.aio.ClientInterceptor]:
    """For a channel of an event loop: unary calls, which are those that belong to groups."""
    return [_AsyncUnary()]


class CallerContext(grpc.aio.ServerInterceptor):
    """Makes the caller's span known to what serves the call."""

    async def intercept_service(  # ruff: ignore[no-self-use] gRPC calls it as a method
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Reads the metadata; the handler runs in the same task."""
        use_caller(handler_call_details.invocation_metadata or ())
        return await continuation(handler_call_details)
