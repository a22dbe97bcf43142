"""Lets a call through to its servicer, or refuses it, before a servicer sees it.

    call ──► Authorization ──► TolerantDecoding ──► servicer ──► check_acts_as(worker name of the message)
                 │ Callers.admit(method, certificate, token)
                 └─ refused: PERMISSION_DENIED, with the reason

Without TLS there is no certificate and nobody to tell apart: the hub then listens on loopback, or was told `--insecure`.
"""

import contextvars
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from hetero_rl.errors import RefusedError
from hetero_rl.hub.callers import Callers
from hetero_rl.wire.refusal import abort
from hetero_rl.wire.roles import Caller

__all__ = ["Authorization", "check_acts_as"]

_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

_logger = logging.getLogger(__name__)


def check_acts_as(worker_name: str) -> None:
    """Refuses a message that speaks for a worker which its sender's certificate does not name.

    Raises:
        RefusedError: NOT_AUTHORIZED.
    """
    caller = _caller.get()
    # A message without a name is malformed, which its conversion says.
    if caller is not None and worker_name and not caller.may_act_as(worker_name):
        raise RefusedError(
            f"not authorized: the certificate of {caller.name!r} does not cover the worker name {worker_name!r}: use the "
            f'name {caller.name!r}, or one that begins with "{caller.name}-"',
            "NOT_AUTHORIZED",
        )


class Authorization(grpc.aio.ServerInterceptor):
    """Asks `Callers` about every call.

    Args:
        callers: Who may call what.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Puts the check in front of the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        return handler._replace(
            **{
                kind: self._guarded(method, behavior)
                for kind in _KINDS
                if (behavior := getattr(handler, kind)) is not None
            }
        )

    def _guarded(self, method: str, behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        if inspect.isasyncgenfunction(behavior):

            async def stream(request: Any, context: Any) -> AsyncGenerator[Any]:
                await self._admit(method, context)
                async for answer in behavior(request, context):
                    yield answer

            return stream

        async def call(request: Any, context: Any) -> Any:
            await self._admit(method, context)
            return await behavior(request, context)

        return call

    async def _admit(self, method: str, context: Any) -> None:
        try:
            # Every call is a task of its own, so what is set here ends with the call.
            _caller.set(
                self._callers.admit(method, context.auth_context(), context.invocation_metadata() or ())
            )
        except RefusedError as error:
            _logger.warning("%s from %s: %s", method, context.peer(), error)
            await abort(context, error)
