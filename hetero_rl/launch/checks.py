"""What is wrong before anything is started: each check raises one error that says what to do."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from hetero_rl.config import Config, load_config
from hetero_rl.errors import ConfigError
from hetero_rl.launch.plan import PlannedWorker, planned_workers
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.worker.backend import Backend, find_backend
from hetero_rl.worker.emulations import find_emulation

__all__ = [
    "STARTER",
    "check_backends",
    "check_model",
    "check_port",
    "check_run_directory",
    "identity_changes",
    "split_address",
]

STARTER = "starter"

# What may differ when a run is continued: where and how fast it runs, how it is watched, and for how long. Everything
# else decides which weights come out, so a key that is added later belongs to the identity until it is listed here.
_FREE_ON_RESUME = (
    "run.dir",
    "run.steps",
    "task.grading_timeout",
    "task.grading_processes",
    "evaluation.every",
    "evaluation.temperature",
    "trainer.tokens_per_micro_batch",
    "trainer.device",
    "trainer.threads",
    "trainer.prefetch_groups",
    "weights.probe_tolerance",
    "model.starter.cache_dir",
    "checkpoint",
    "hub",
    "inference",
    "launcher",
    "placement",
    "security",
    "logging",
    "observability",
    "cost",
)


def check_backends(config: Config, *, detect: bool = True) -> dict[str, Backend]:
    """The backends whose workers can be started here, by name; a backend without a device here is left to other machines.

    Args:
        config: The resolved settings.
        detect: Whether devices are looked for; a cluster knows its own.

    Raises:
        BackendNotFoundError: One is not installed.
        ConfigError: A worker is to emulate, or to be set up, in a way that does not exist; or the run samples in a way
            that a backend cannot report.
    """
    if config.inference.workers == 0:
        return {}  # remote workers bring their own
    found = {}
    for worker in planned_workers(config):
        backend = find_backend(worker.backend)
        _check_worker(config, worker, backend)
        if worker.backend not in found and (not detect or backend.detect().available):
            found[worker.backend] = backend
    return found


def _check_worker(config: Config, worker: PlannedWorker, backend: Backend) -> None:
    settings = config.inference.worker.model_dump() | dict(worker.settings)
    backend.profile(settings["profile"])
    if settings["emulate"]:
        find_emulation(settings["emulate"])
    sampling = config.sampling
    portable = (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    if backend.portable_sampling_only and not portable:
        raise ConfigError(
            f"sampling has temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}: backend "
            f"{backend.name!r} offers 1, 1, 0 only. {backend.portable_sampling_only}"
        )


def check_model(path: str) -> None:
    """Raises ConfigError unless the path is "starter" or a model directory in safetensors."""
    if path == STARTER:
        return
    directory = Path(path).expanduser()
    if not directory.is_dir():
        raise ConfigError(
            f"model.path = {path!r}: no such directory. Give a Hugging Face model directory, or {STARTER!r} for the "
            "small model made on the spot"
        )
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"model.path = {path!r}: has no config.json, so it is no Hugging Face model directory"
        )
    if not any(directory.glob("*.safetensors")):
        raise ConfigError(
            f"model.path = {path!r}: has no *.safetensors file; other weight formats are not read"
        )


def split_address(address: str, key: str) -> tuple[str, int]:
    """Host and port of host:port or [v6]:port; raises ConfigError naming the key."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{key} = {address!r}: give host:port, such as 127.0.0.1:7421")
    return host, int(port)


def check_port(listen: str) -> None:
    """Raises ConfigError when the address that the hub shall listen on is taken or not of this machine."""
    host, port = split_address(listen, "hub.listen")
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            # Connections of an earlier hub that linger in TIME_WAIT do not make a port taken.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError as error:
            raise ConfigError(
                f"hub.listen = {listen!r}: {error.strerror or error}. Stop what uses it, or let the hub pick a free "
                "port with hub.listen=127.0.0.1:0"
            ) from error


def check_run_directory(config: Config, *, resume: bool) -> None:
    """Raises ConfigError when the directory holds another run, or none to continue."""
    run = RunDirectory(config.run.dir)
    if run.root.exists() and not run.root.is_dir():
        raise ConfigError(f"run.dir = {str(run.root)!r}: is not a directory")
    # A hub that runs already has its journal where it belongs to this very run, and knows itself whether it does.
    used = run.used if config.hub.address is None else run.trained
    if used and not resume:
        raise ConfigError(
            f"run.dir = {str(run.root)!r}: holds a run already. Continue it with --resume, or start another with "
            "--set run.dir=DIRECTORY"
        )
    if not resume:
        return
    if not run.config.exists():
        raise ConfigError(f"run.dir = {str(run.root)!r}: holds no run to continue; start it without --resume")
    changes = list(identity_changes(load_config([run.config]), config))
    if changes:
        raise ConfigError(
            f"the run in {str(run.root)!r} cannot go on with other settings than it began with:\n"
            + "\n".join(f"  {change}" for change in changes)
            + "\nStart another run with --set run.dir=DIRECTORY, or leave these as they were"
        )


def identity_changes(before: Config, after: Config) -> Iterator[str]:
    """The keys that make it another run, one line each: key, value before, value after."""
    old, new = (dict(_leaves(json.loads(config.model_dump_json()))) for config in (before, after))
    for key in sorted(old.keys() | new.keys()):
        is_free = any(key == free or key.startswith(f"{free}.") for free in _FREE_ON_RESUME)
        if not is_free and old.get(key) != new.get(key):
            yield f"{key}: began with {_shown(old, key)}, now {_shown(new, key)}"


def _shown(leaves: Mapping[str, object], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "unset"


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value
