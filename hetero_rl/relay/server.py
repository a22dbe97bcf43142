"""A relay as a server, and its process.

    workers of the site ──► RelayServicer ──► RelayCache ──┐
                                   └────────► Upstream ────┴──► one connection ──► hub

Stopping: no new calls, running ones get a grace, then downloads are cancelled; what they fetched stays on the disk.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from hetero_rl.config.tree import Config, SecurityConfig
from hetero_rl.errors import ConfigError, StorageError
from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.hub.callers import Callers
from hetero_rl.hub.lock import RunLock
from hetero_rl.hub.servicers.authorization import Authorization
from hetero_rl.hub.servicers.calls import TolerantDecoding
from hetero_rl.metrics.exporter import exporting
from hetero_rl.metrics.relay import RelayReadings
from hetero_rl.relay.cache import RelayCache
from hetero_rl.relay.servicer import RelayServicer, health_handler
from hetero_rl.relay.upstream import Upstream
from hetero_rl.v1 import weight_service_pb2_grpc
from hetero_rl.wire.channels import server_options
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.credentials import channel_credentials, check_listen_address, server_credentials
from hetero_rl.wire.ports import WeightPort

__all__ = ["RunningRelay", "running_relay", "serve"]

GRACE_SECONDS = 5.0
_MOST_REQUEST_BYTES = 64 * 1024
_MOST_CONCURRENT_CALLS = 1024

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningRelay:
    """A relay that answers calls."""

    address: str
    """host:port, with the port that was picked."""
    cache: RelayCache


@asynccontextmanager
async def running_relay(
    port: WeightPort,
    directory: Path,
    *,
    listen: str = "127.0.0.1:0",
    most_bytes: int = 2**36,
    security: SecurityConfig | None = None,
) -> AsyncGenerator[RunningRelay]:
    """Serves a hub's weights until the block ends.

    Args:
        port: The hub.
        directory: Where blobs are kept; one relay at a time.
        listen: host:port.
        most_bytes: Bound on what is kept.
        security: Certificates, and who may call.

    Raises:
        ConfigError: The address is not allowed without TLS, or cannot be listened on.
        StorageError: The directory cannot be used, or another relay uses it.
    """
    security = security or SecurityConfig()
    check_listen_address(listen, security, setting="relay.listen", role="relay")
    with RunLock(directory):
        try:
            cache = RelayCache(directory, port, most_bytes)
        except OSError as error:
            raise StorageError(f"{directory} cannot be used: {error.strerror or error}") from error
        upstream = Upstream(port)
        try:
            server, address = await _start_server(RelayServicer(upstream, cache), listen, security)
            try:
                yield RunningRelay(address, cache)
            finally:
                await server.stop(GRACE_SECONDS)
        finally:
            await upstream.close()
            await cache.close()


async def _start_server(
    servicer: RelayServicer, listen: str, security: SecurityConfig
) -> tuple[grpc.aio.Server, str]:
    credentials = server_credentials(security)
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (TolerantDecoding(),)
    if credentials is not None:
        interceptors = (Authorization(Callers(security.registry)), *interceptors)
    server = grpc.aio.server(
        options=server_options(_MOST_REQUEST_BYTES),
        interceptors=interceptors,
        maximum_concurrent_rpcs=_MOST_CONCURRENT_CALLS,
    )
    weight_service_pb2_grpc.add_WeightServiceServicer_to_server(servicer, server)
    server.add_generic_rpc_handlers((health_handler(),))
    try:
        if credentials is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"--listen is {listen!r}, which cannot be listened on: the port is in use or the host is not this machine's"
        ) from error
    await server.start()
    return server, f"{listen.rpartition(':')[0]}:{port}"


def serve(config: Config, hub_address: str, directory: Path) -> None:
    """Runs a relay until SIGTERM or SIGINT.

    Args:
        config: Sections `relay`, `security` and `hub.max_message_bytes` count.
        hub_address: host:port of the hub, or of a relay closer to it.
        directory: Where blobs are kept.

    Raises:
        ConfigError: See `running_relay`.
        StorageError: See `running_relay`.
    """
    keep_freed_memory()
    asyncio.run(_serve(config, hub_address, directory))


async def _serve(config: Config, hub_address: str, directory: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    largest = config.hub.max_message_bytes
    credentials = channel_credentials(config.security)
    # A relay fetches what its workers ask for: bytes that come unasked would be in the way.
    async with WeightClient(hub_address, credentials, max_message_bytes=largest, follow=False) as hub:
        serving = running_relay(
            hub,
            directory,
            listen=config.relay.listen,
            most_bytes=config.relay.cache_bytes,
            security=config.security,
        )
        async with serving as relay:
            with exporting(config, "relay") as exporter:
                exporter.add(RelayReadings(relay.cache))
                _logger.info("the relay of %s listens on %s", hub_address, relay.address)
                await stop.wait()
            _logger.info("the relay is stopping; %d bytes came over the line", relay.cache.fetched_bytes)
