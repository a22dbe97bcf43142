"""The hub as a server: what listens, what runs beside it, and how it stops.

    event loop                                            threads
      gRPC server ─► servicers ─► core.run ────────────►  hub-core (handlers, journal) ─► hub-sync (the disk, then answers)
                                                                                           └─► checkpoint (moves the log)
                          └─────► asyncio.to_thread ───►  pool (blob files, large conversions)
      sweepers: every second core.run(sweep) and, while the journal fails, core.run(probe);
                every minute core.run(unnamed_blobs) ─► pool (their bytes)
      stop event ◄── SIGTERM, SIGINT, end of stdin (when a trainer started this hub)

Stopping, in this order: health says NOT_SERVING and long polls return with what they have; the server takes no new calls
and lets running ones finish within the grace; the sweeper ends; the core answers what is queued, which waits for the last sync, and
closes the journal, which waits for a checkpoint;
the address file goes. A call that was not answered was not acknowledged, so its sender repeats it at the next hub.
"""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from hetero_rl.config.tree import Config, SecurityConfig
from hetero_rl.errors import ConfigError, HeteroRLError, StorageError
from hetero_rl.hub.blobs import BlobStore
from hetero_rl.hub.callers import Callers
from hetero_rl.hub.clock import SystemClock
from hetero_rl.hub.core import HubCore
from hetero_rl.hub.handlers.context import HubContext, HubSettings
from hetero_rl.hub.handlers.versions import note_lost_blobs, unnamed_blobs
from hetero_rl.hub.handlers.workers import sweep
from hetero_rl.hub.remote_blobs import open_blob_store
from hetero_rl.hub.servicers.authorization import Authorization
from hetero_rl.hub.servicers.calls import TolerantDecoding
from hetero_rl.hub.servicers.fleet import FleetServicer
from hetero_rl.hub.servicers.health import HealthServicer
from hetero_rl.hub.servicers.rollout import RolloutServicer
from hetero_rl.hub.servicers.training import TrainingServicer
from hetero_rl.hub.servicers.weights import WeightServicer
from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.telemetry.tracing import tracing
from hetero_rl.v1 import (
    fleet_service_pb2_grpc,
    rollout_service_pb2_grpc,
    training_service_pb2_grpc,
    weight_service_pb2_grpc,
)
from hetero_rl.wire.channels import server_options
from hetero_rl.wire.credentials import check_listen_address, server_credentials
from hetero_rl.wire.trace_context import CallerContext

__all__ = ["ADDRESS_FILE", "RunningHub", "hub_settings", "running_hub", "running_local_hub"]

ADDRESS_FILE = "address"
GRACE_SECONDS = 10.0
_BLOB_SWEEP_SECONDS = 60.0
_MOST_CONCURRENT_CALLS = (
    1024  # each worker has about four under way, most of them waiting; the surplus is refused at once
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningHub:
    """A hub that answers calls."""

    address: str
    """host:port, with the port that was picked."""
    core: HubCore


def hub_settings(config: Config) -> HubSettings:
    """The hub's terms out of the whole configuration."""
    groups_per_step = config.trainer.groups_per_step
    return HubSettings(
        lease_seconds=config.hub.lease_seconds,
        heartbeat_seconds=config.hub.heartbeat_seconds,
        missed_heartbeats=config.hub.missed_heartbeats,
        retained_sequences=config.hub.retained_sequences,
        max_message_bytes=config.hub.max_message_bytes,
        split_groups=config.placement.split_groups,
        queue_steps=-(-config.trainer.prefetch_groups // groups_per_step),
    )


@asynccontextmanager
async def running_hub(
    store: HubStore,
    blobs: BlobStore,
    settings: HubSettings,
    *,
    listen: str = "127.0.0.1:0",
    security: SecurityConfig | None = None,
    sweep_seconds: float = 1.0,
) -> AsyncGenerator[RunningHub]:
    """Serves a store until the block ends, then drains. The store is closed at the end.

    Raises:
        ConfigError: The address is not allowed without TLS, or cannot be listened on.
    """
    security = security or SecurityConfig()
    check_listen_address(listen, security)
    context = HubContext(store, SystemClock(), settings, blobs)
    core = HubCore(context, asyncio.get_running_loop())
    try:
        await _note_lost_blobs(core)
        server, address = await _start_server(core, blobs, settings, listen, security)
        sweepers = (
            asyncio.create_task(_sweep_forever(core, sweep_seconds), name="hub-sweeper"),
            asyncio.create_task(_sweep_blobs_forever(core, blobs), name="hub-blob-sweeper"),
        )
        try:
            yield RunningHub(address, core)
        finally:
            core.board.close()
            await server.stop(GRACE_SECONDS)
            for sweeper in sweepers:
                sweeper.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sweeper
    finally:
        await core.close()


async def _start_server(
    core: HubCore, blobs: BlobStore, settings: HubSettings, listen: str, security: SecurityConfig
) -> tuple[grpc.aio.Server, str]:
    credentials = server_credentials(security)
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (TolerantDecoding(),)
    if credentials is not None:
        interceptors = (Authorization(Callers(security.registry)), *interceptors)
    if tracing() is not None:
        interceptors = (*interceptors, CallerContext())
    server = grpc.aio.server(
        options=server_options(settings.max_message_bytes),
        interceptors=interceptors,
        maximum_concurrent_rpcs=_MOST_CONCURRENT_CALLS,
    )
    limit = settings.max_message_bytes
    rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(core, limit), server)
    training_service_pb2_grpc.add_TrainingServiceServicer_to_server(
        TrainingServicer(core, blobs, limit), server
    )
    weight_service_pb2_grpc.add_WeightServiceServicer_to_server(WeightServicer(core, blobs), server)
    fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(FleetServicer(core), server)
    server.add_generic_rpc_handlers((HealthServicer(core).handler(),))
    try:
        if credentials is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"hub.listen is {listen!r}, which cannot be listened on: the port is in use or the host is not this machine's; "
            "choose another, or port 0 for any free one"
        ) from error
    await server.start()
    return server, f"{_dialed_host(listen.rpartition(':')[0])}:{port}"


def _dialed_host(host: str) -> str:
    """The host under which this machine reaches what listens on `host`; a wildcard is no name to verify."""
    try:
        wildcard = not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host
    if not wildcard:
        return host
    return "[::1]" if host.startswith("[") else "127.0.0.1"


async def _note_lost_blobs(core: HubCore) -> None:
    """A hub starts all the same: workers get other ways, and the next version comes as a full copy."""
    try:
        await core.run(note_lost_blobs)
    except HeteroRLError as error:
        _logger.warning("the history does not say which blobs are lost: %s", error)


async def _sweep_forever(core: HubCore, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await core.run(sweep)
            if not core.writable:
                await core.run(_probe)
        except HeteroRLError as error:
            _logger.warning("the sweep failed and is repeated: %s", error)


async def _sweep_blobs_forever(core: HubCore, blobs: BlobStore) -> None:
    while True:
        await asyncio.sleep(_BLOB_SWEEP_SECONDS)
        try:
            for digest in await core.run(unnamed_blobs):
                await asyncio.to_thread(blobs.purge, digest)
        except HeteroRLError as error:
            _logger.warning("blobs that nothing names could not be removed; that is repeated: %s", error)


def _probe(context: HubContext) -> None:
    context.store.probe_write()


def _sound_store(path: Path, *, begun: bool) -> SqliteStore:
    """Opens a journal that was read through; blobs come after a run was opened, so without one it is not `begun`."""
    store = SqliteStore(path)
    try:
        store.verify(begun=begun)
    except StorageError:
        store.close()
        raise
    return store


@asynccontextmanager
async def running_local_hub(config: Config, directory: Path) -> AsyncGenerator[RunningHub]:
    """Serves the journal and blobs of `directory`, which must be locked; its address file exists while it does.

    Raises:
        ConfigError: See `running_hub`.
        StorageError: The journal or the directory cannot be used.
    """
    check_listen_address(config.hub.listen, config.security)
    blobs = open_blob_store(config.weights.blob_store, directory)
    store = await asyncio.to_thread(_sound_store, directory / "journal.sqlite", begun=bool(blobs.digests()))
    address_file = directory / ADDRESS_FILE
    serving = running_hub(
        store, blobs, hub_settings(config), listen=config.hub.listen, security=config.security
    )
    async with serving as hub:
        _write_address(address_file, hub.address)
        try:
            yield hub
        finally:
            address_file.unlink(missing_ok=True)


def _write_address(path: Path, address: str) -> None:
    scratch = path.with_suffix(".tmp")
    scratch.write_text(f"{address}\n")
    scratch.replace(path)
