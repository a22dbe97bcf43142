"""Tokens in the metadata of calls over TLS.

gRPC's own way, call credentials, starts a thread for every call, which costs a small call more than everything else on the
client. A token is only ever put on a channel that was opened with TLS credentials: they are what it comes with.
"""

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc

__all__ = ["TokenCredentials", "transport_of", "with_token"]

_Channel = TypeVar("_Channel")


class TokenCredentials(grpc.ChannelCredentials):
    """TLS credentials and a token. Given to gRPC as they are, they send the token in gRPC's own way.

    Args:
        transport: What is shown in the handshake.
        token: What is shown with every call.
    """

    def __init__(self, transport: grpc.ChannelCredentials, token: str) -> None:
        both: Any = grpc.composite_channel_credentials(transport, grpc.access_token_call_credentials(token))
        super().__init__(both._credentials)  # ruff: ignore[private-member-access] what every kind of credentials wraps
        self.transport = transport
        self.token = token


def transport_of(credentials: grpc.ChannelCredentials) -> grpc.ChannelCredentials:
    """What is shown in the handshake, without the token."""
    return credentials.transport if isinstance(credentials, TokenCredentials) else credentials


def with_token(channel: _Channel, credentials: grpc.ChannelCredentials | None) -> _Channel:
    """The channel, with the token of its credentials in the metadata of every call."""
    if not isinstance(credentials, TokenCredentials):
        return channel
    return cast("_Channel", _TokenChannel(channel, credentials.token))


class _TokenChannel:
    """A blocking or an asyncio channel; its calls take no other metadata."""

    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def unary_unary(self, *names: Any, **settings: Any) -> Callable[..., Any]:
        return functools.partial(self._channel.unary_unary(*names, **settings), metadata=self._metadata)

    def unary_stream(self, *names: Any, **settings: Any) -> Callable[..., Any]:
        return functools.partial(self._channel.unary_stream(*names, **settings), metadata=self._metadata)

    def stream_unary(self, *names: Any, **settings: Any) -> Callable[..., Any]:
        return functools.partial(self._channel.stream_unary(*names, **settings), metadata=self._metadata)

    def stream_stream(self, *names: Any, **settings: Any) -> Callable[..., Any]:
        return functools.partial(self._channel.stream_stream(*names, **settings), metadata=self._metadata)
