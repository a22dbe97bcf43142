"""`hetero-rl worker`: from a hub's address to a worker that serves, and to its end.

preflight ─► GetRun ─► model files ─► engine starts ─► Join ─► loops (conductor.py) ─► Leave ─► engine closes
SIGTERM, SIGINT, or the parent's end: drain; a second signal: leave at once
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import os
import shutil
import signal
import time
import uuid
from pathlib import Path

import grpc

from hetero_rl import __version__
from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, RefusedError, UnreachableError
from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.launch.lifeline import follow_parent
from hetero_rl.metrics.exporter import Exporter, exporting
from hetero_rl.metrics.worker import WorkerReadings
from hetero_rl.telemetry.logs import describe_process, log_to
from hetero_rl.telemetry.tracing import flush_traces, trace_run
from hetero_rl.wire.clients import RolloutClient, WeightClient
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import JoinRequest, RunDescription, SamplingParameters
from hetero_rl.wire.ports import RolloutPort, WeightPort
from hetero_rl.wire.preflight import preflight
from hetero_rl.worker.backend import Backend, find_backend
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.conductor import conduct
from hetero_rl.worker.emulations import find_emulation, labelled_backend
from hetero_rl.worker.engine import Engine, EngineSettings
from hetero_rl.worker.engine_keeper import EngineKeeper
from hetero_rl.worker.link import Link
from hetero_rl.worker.model_source import model_directory
from hetero_rl.worker.relayed import RelayedWeights
from hetero_rl.worker.resend import Backoff, Pacing
from hetero_rl.worker.session import Session
from hetero_rl.worker.weight_loop import WeightLoop
from hetero_rl.worker.weight_stage import ENCODINGS

__all__ = ["WorkerOptions", "run_worker", "serve"]

_logger = logging.getLogger(__name__)

_PREFLIGHT_SECONDS = 10.0
_EMULATING_ENGINE = "transformers"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker process is started with."""

    hub_address: str
    """host:port."""
    backend: Backend
    worker_name: str
    config: Config
    engine_name: str | None = None
    """None starts the backend's own choice."""
    pacing: Pacing = dataclasses.field(default_factory=Pacing)
    cache_dir: Path | None = None
    """Where blobs and model files are kept; None is the user's cache directory."""


def run_worker(
    hub_address: str,
    backend_name: str,
    config: Config,
    worker_name: str,
    *,
    exit_with_parent: bool = False,
    engine_name: str | None = None,
) -> None:
    """Works for a hub until the run is complete, the hub drains this worker or a signal asks it to stop.

    Args:
        hub_address: host:port of the hub.
        backend_name: Installed backend.
        config: Settings; `inference.worker`, `security` and `hub.max_message_bytes` matter here.
        worker_name: Unique among the workers of the hub.
        exit_with_parent: Whether the end of standard input means that the parent has died.
        engine_name: Engine of the backend; None takes that of the settings, or the backend's own choice.

    Raises:
        BackendNotFoundError: No such backend is installed.
        RefusedError: The hub does not take this worker; for MODEL_MISMATCH both digests are in the message.
        UnreachableError: The hub was silent for longer than the patience.
        EngineError: The engine does not start, or has died too often.
        FencedError: Another process has taken the name.
    """
    backend = find_backend(backend_name)
    for name, value in backend.process_environment(config.inference.worker.profile).items():
        os.environ.setdefault(name, value)
    options = WorkerOptions(
        hub_address=hub_address,
        backend=backend,
        worker_name=worker_name,
        config=config,
        engine_name=engine_name or config.inference.worker.engine,
    )
    if not logging.getLogger().handlers:
        log_to(config.logging.level, config.logging.format, role="worker", worker=worker_name)
    if exit_with_parent:
        follow_parent(options.pacing.drain + options.pacing.flush)
    credentials = channel_credentials(config.security)
    _await_hub(options, credentials)
    asyncio.run(_work(options, credentials))


def _await_hub(options: WorkerOptions, credentials: grpc.ChannelCredentials | None) -> None:
    """Returns when the hub serves; a wrong setting ends the wait at once."""
    deadline = time.monotonic() + options.config.inference.start_timeout
    backoff = Backoff(options.pacing)
    while True:
        try:
            return preflight(options.hub_address, credentials, _PREFLIGHT_SECONDS)
        except UnreachableError as error:
            if time.monotonic() > deadline:
                raise
            delay = backoff.next_delay()
            _logger.warning("no hub yet, again in %.1f s: %s", delay, error)
            time.sleep(delay)


async def _work(options: WorkerOptions, credentials: grpc.ChannelCredentials | None) -> None:
    keep_freed_memory()
    largest = options.config.hub.max_message_bytes
    relay_address = options.config.inference.worker.relay
    async with contextlib.AsyncExitStack() as stack:
        rollout = await stack.enter_async_context(
            RolloutClient(options.hub_address, credentials, max_message_bytes=largest)
        )
        weights: WeightPort = await stack.enter_async_context(
            WeightClient(options.hub_address, credentials, max_message_bytes=largest)
        )
        if relay_address is not None:
            relay = await stack.enter_async_context(
                WeightClient(relay_address, credentials, max_message_bytes=largest)
            )
            weights = RelayedWeights(relay, weights)
        signals: asyncio.Queue[str] = asyncio.Queue()
        _catch_signals(signals)
        exporter = stack.enter_context(exporting(options.config, "worker"))
        await serve(options, rollout, weights, signals, exporter)


def _catch_signals(signals: asyncio.Queue[str]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, signal.Signals(number).name)


async def serve(
    options: WorkerOptions,
    rollout: RolloutPort,
    weights: WeightPort,
    signals: asyncio.Queue[str],
    exporter: Exporter | None = None,
) -> None:
    """Works for a hub, whatever carries the calls; raises like `run_worker`.

    Args:
        options: What the worker is started with.
        rollout: The hub.
        weights: Where weights come from.
        signals: Names of signals that arrive; the first one drains, the second one drops what is running.
        exporter: Shows the worker's metrics from its joining on.
    """
    starting = asyncio.create_task(_start(options, rollout, weights))
    first_signal = asyncio.create_task(signals.get())
    await asyncio.wait([starting, first_signal], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        _logger.info("stopping before the worker joined: %s", first_signal.result())
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    started = await starting
    if exporter is not None:
        exporter.add(WorkerReadings(started.session))
    obeying = asyncio.create_task(_obey(started.session, first_signal, signals))
    try:
        await conduct(started.session, started.weight_loop)
    finally:
        obeying.cancel()
        await started.session.keeper.engine.close()
    shutil.rmtree(started.scratch, ignore_errors=True)
    _logger.info("left: %s", started.session.stop_reason)
    # Later nothing handles the signal by which a launcher ends this process, and it would cut OpenTelemetry's own end short.
    await asyncio.to_thread(flush_traces)


async def _obey(session: Session, first_signal: "asyncio.Task[str]", signals: asyncio.Queue[str]) -> None:
    session.stop(f"{await first_signal} arrived")
    name = await signals.get()
    session.drop_leases(tuple(session.running), f"{name} arrived as well")


@dataclasses.dataclass(frozen=True, slots=True)
class _Started:
    """A worker that has joined."""

    session: Session
    weight_loop: WeightLoop
    scratch: Path


_LOST_MODEL_FILES = 8
"""Files that may be found damaged, one after another, before a worker gives up."""


async def _start(options: WorkerOptions, rollout: RolloutPort, weights: WeightPort) -> _Started:
    """Everything up to Join: the run, the model, the engine."""
    # Importing an engine takes seconds; the hub may need as long until a trainer has opened the run.
    patient = dataclasses.replace(options.pacing, longest_delay=min(1.0, options.pacing.longest_delay))
    build_engine, run = await asyncio.gather(
        asyncio.to_thread(options.backend.engine_class, options.engine_name),
        Link(rollout, patient).repeat("question for the run", rollout.get_run),
    )
    describe_process(run=run.run_id)
    trace_run(run.run_id)
    link = Link(rollout, options.pacing)
    cache_dir = options.cache_dir or _user_cache_dir()
    hub_identity = hashlib.sha256(f"{options.hub_address}/{run.run_id}".encode()).hexdigest()[:16]
    scratch = cache_dir / "workers" / hub_identity / options.worker_name
    blobs = BlobCache(scratch, weights, link)
    model_dir = await _model(options, run, cache_dir / "models", blobs, Link(rollout, patient))
    _check_sampling(options.backend, run.sampling)
    settings = _engine_settings(options, model_dir)
    keeper = EngineKeeper(lambda: build_engine(settings), options.pacing.engine_restarts)
    await keeper.start()
    engine = keeper.engine
    _logger.info("engine started: %s", engine.numerics())
    await link.join(_join_request(options, run, engine))
    ask_ahead = options.config.inference.worker.ask_ahead
    session = Session(link, weights, keeper, run, options.pacing, ask_ahead=ask_ahead)
    return _Started(session, WeightLoop(session, blobs), scratch)


async def _model(
    options: WorkerOptions, run: RunDescription, models_dir: Path, blobs: BlobCache, link: Link
) -> Path:
    """The model's directory; waits for the trainer when the hub turns out to have lost a file of it."""
    own_path = options.config.inference.worker.model_path
    for _ in range(_LOST_MODEL_FILES):
        try:
            return await model_directory(run, own_path, models_dir, blobs)
        except RefusedError as error:
            if error.reason not in {"DIGEST_MISMATCH", "NOT_FOUND"}:
                raise
            _logger.warning("a model file cannot be had until the trainer has uploaded it again: %s", error)
        # The hub answers once it has all of them.
        run = await link.repeat("question for the run", link.port.get_run)
    return await model_directory(run, own_path, models_dir, blobs)


def _check_sampling(backend: Backend, sampling: SamplingParameters) -> None:
    """Raises ConfigError when a backend cannot report the log-probabilities of the run's distribution."""
    if backend.portable_sampling_only and not sampling.portable:
        raise ConfigError(
            f"the run samples with temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}, which "
            f"backend {backend.name!r} does not offer. {backend.portable_sampling_only}"
        )


def _engine_settings(options: WorkerOptions, model_dir: Path) -> EngineSettings:
    worker = options.config.inference.worker
    engine = options.engine_name or options.backend.default_engine
    if worker.emulate and engine != _EMULATING_ENGINE:
        raise ConfigError(
            f"inference.worker.emulate = {find_emulation(worker.emulate).name!r}: engine {engine!r} computes as its device "
            f"does; emulation needs the engine {_EMULATING_ENGINE!r}"
        )
    return EngineSettings(
        model_dir=model_dir,
        dtype=worker.dtype,
        max_concurrent_sequences=worker.max_concurrent_sequences,
        threads=worker.threads,
        drain_before_update=worker.weight_update == "drain",
        device=options.backend.torch_device,
        options=options.backend.engine_options(options.engine_name, worker.profile, worker.engine_options),
        emulate=worker.emulate or "",
        shared_dir=worker.shared_dir,
    )


def _join_request(options: WorkerOptions, run: RunDescription, engine: Engine) -> JoinRequest:
    encodings = tuple(int(encoding) for encoding in ENCODINGS)
    measured = engine.capabilities()
    # What an engine measured of itself never outweighs what is known of its vendor.
    processed = measured.processed_log_probs and not options.backend.portable_sampling_only
    return JoinRequest(
        run_id=run.run_id,
        worker_name=options.worker_name,
        boot_id=uuid.uuid4().hex,
        backend=labelled_backend(options.backend.name, options.config.inference.worker.emulate),
        software_version=__version__,
        capabilities=dataclasses.replace(measured, weight_encodings=encodings, processed_log_probs=processed),
        numerics=engine.numerics(),
        model_digests=engine.model_digests(),
    )


def _user_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hetero-rl"
