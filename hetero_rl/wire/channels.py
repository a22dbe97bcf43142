"""Settings of every connection, in one place: deadlines, keepalive, sizes.

    worker or trainer                                hub
      control channel  ── small calls, heartbeats ──►  server
      bulk channel     ── weights, blobs, batches ──►  (same port, another connection)

A chunk of a weight version must never delay a heartbeat, so the two channels never share a connection. gRPC's own retry
is off: it stops silently above 256 KiB, and only the caller knows whether a repeat is safe.
"""

import dataclasses
import ipaddress
from collections.abc import Sequence

import grpc
import grpc.aio

from hetero_rl.telemetry.tracing import tracing
from hetero_rl.wire.tokens import transport_of, with_token
from hetero_rl.wire.trace_context import async_interceptors, blocking_interceptor

__all__ = [
    "CHUNK_BYTES",
    "DEADLINES",
    "DEFAULT_MAX_MESSAGE_BYTES",
    "Deadlines",
    "bulk_options",
    "chunk_bytes",
    "control_options",
    "is_loopback",
    "open_async_channel",
    "open_channel",
    "server_options",
]

Options = list[tuple[str, int | str]]

CHUNK_BYTES = 2 * 2**20
"""Most bytes of one chunk of a blob. Streams of 1 to 4 MiB chunks cost the least CPU time per byte."""
_SMALLEST_CHUNK = 64 * 2**10
_CHUNKS = 32

DEFAULT_MAX_MESSAGE_BYTES = 8 * 2**20
"""Largest message that the hub takes when nobody says otherwise."""

_UNLIMITED = -1
_KEEPALIVE_MS = 20_000
_CONTROL_PING_TIMEOUT_MS = 5_000
_BULK_PING_TIMEOUT_MS = 20_000
_MIN_PING_INTERVAL_MS = 15_000
_MAX_CONNECTION_AGE_MS = 30 * 60_000
_CONNECTION_GRACE_MS = 60_000
# After a cut gRPC itself would try again up to two minutes later. One attempt gets the time that a TLS handshake takes
# on a slow line.
_FIRST_RECONNECT_MS = 200
_LONGEST_RECONNECT_MS = 5_000
_CONNECT_ATTEMPT_MS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a call may take. A call that waits for something gets the wait on top."""

    control: float = 15.0
    """Calls without bulk: join, heartbeat, lease, status."""
    submit: float = 60.0
    """Calls that carry a batch and end on disk: submit, enqueue, commit, publish."""
    chunk: float = 60.0
    """The next chunk of a download."""
    stream: float = 120.0
    """A whole stream of finished groups, and an upload before its size counts."""
    slowest_upload: float = 256 * 1024
    """Bytes per second below which an upload is given up; it resumes where it stopped."""

    def upload(self, size: int) -> float:
        """Seconds that an upload of `size` bytes may take."""
        return self.stream + size / self.slowest_upload


DEADLINES = Deadlines()


def chunk_bytes(blob_bytes: int) -> int:
    """Bytes of one chunk of a blob that large: a delta is decoded while it comes, and the last chunk is decoded after all."""
    return min(max(blob_bytes // _CHUNKS, _SMALLEST_CHUNK), CHUNK_BYTES)


def control_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> Options:
    """Options of a channel for small calls; notices a frozen hub in about 25 s."""
    return _client_options(max_message_bytes, _CONTROL_PING_TIMEOUT_MS)


def bulk_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> Options:
    """Options of a channel for bulk; notices a frozen hub in about 40 s.

    The keepalive timeout also becomes TCP_USER_TIMEOUT, which counts every unacknowledged byte: a tight one would cut
    transfers on a slow or lossy link.
    """
    return _client_options(max_message_bytes, _BULK_PING_TIMEOUT_MS)


def _client_options(max_message_bytes: int, ping_timeout_ms: int) -> Options:
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        # What the hub says is trusted: a manifest or a group of many submissions may exceed what one worker may send.
        ("grpc.max_receive_message_length", _UNLIMITED),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", ping_timeout_ms),
        # Without this one the default of 60 s decides, whatever the two above say.
        ("grpc.http2.ping_timeout_ms", ping_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_ATTEMPT_MS),
        ("grpc.enable_retries", 0),
        # Channels with equal options to one address would share a connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> Options:
    """Options of the hub's server; they match what clients send."""
    return [
        ("grpc.max_send_message_length", _UNLIMITED),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _BULK_PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _BULK_PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        ("grpc.max_connection_age_ms", _MAX_CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", _CONNECTION_GRACE_MS),
        # A second hub on the same port must fail, not share the traffic.
        ("grpc.so_reuseport", 0),
    ]


def open_channel(
    address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, int | str]]
) -> grpc.Channel:
    """A blocking channel; plaintext without credentials. Connects at the first call."""
    if credentials is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, transport_of(credentials), options=options)
    if tracing() is not None:
        channel = grpc.intercept_channel(channel, blocking_interceptor())
    return with_token(channel, credentials)


def open_async_channel(
    address: str, credentials: grpc.ChannelCredentials | None, options: Sequence[tuple[str, int | str]]
) -> grpc.aio.Channel:
    """A channel of the running event loop; plaintext without credentials. Connects at the first call."""
    interceptors = [] if tracing() is None else async_interceptors()
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    transport = transport_of(credentials)
    channel = grpc.aio.secure_channel(address, transport, options=options, interceptors=interceptors)
    return with_token(channel, credentials)


def is_loopback(address: str) -> bool:
    """Whether `host:port` names this very machine only; a host name other than "localhost" counts as remote."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost" or address.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
