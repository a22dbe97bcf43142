"""What a person types to start a worker on another machine: pure functions from settings to lines of text."""

import shlex
import socket
from collections.abc import Sequence

from hetero_rl.config import Config
from hetero_rl.config.show import toml_value
from hetero_rl.config.tree import WorkerConfig
from hetero_rl.launch.checks import split_address
from hetero_rl.launch.plan import PlannedWorker

__all__ = ["is_loopback", "remote_instructions", "worker_command"]

_EVERYWHERE = {"0.0.0.0", "::"}  # ruff: ignore[hardcoded-bind-all-interfaces] - compared with, never bound
_LOOPBACK = ("127.", "localhost", "::1")


def is_loopback(address: str) -> bool:
    """Whether only processes of the hub's own machine reach host:port."""
    host, _ = split_address(address, "the hub's address")
    return host.startswith(_LOOPBACK)


def worker_command(config: Config, worker: PlannedWorker, address: str) -> str:
    """The command that starts one worker of a run on a machine that reaches the hub at an address."""
    parts = [
        "hetero-rl",
        "worker",
        "--hub",
        address,
        "--infer-backend",
        worker.backend,
        "--name",
        worker.name,
    ]
    if config.security.serves_tls:
        parts += ["--credentials", f"{worker.name}.credentials"]
    settings = {**_changed(config.inference.worker), **worker.settings}
    for key, value in settings.items():
        parts += ["--set", f"inference.worker.{key}={toml_value(key, value)}"]
    return shlex.join(parts)


def _changed(worker: WorkerConfig) -> dict[str, object]:
    """Settings that are not those of a worker that is told nothing; a path of this machine is none for another."""
    default = WorkerConfig().model_dump()
    return {
        key: value
        for key, value in worker.model_dump(mode="json").items()
        if value != default[key] and key != "model_path"
    }


def remote_instructions(config: Config, workers: Sequence[PlannedWorker], address: str) -> list[str]:
    """What to do, line by line, so that workers of another machine join.

    Args:
        config: The resolved settings.
        workers: Workers that cannot be started here.
        address: host:port that the hub listens on.
    """
    backends = sorted({worker.backend for worker in workers})
    lines = [f"waiting for a worker of {', '.join(backends)} on another machine:"]
    _, port = split_address(address, "the hub's address")
    if is_loopback(address):
        lines.append(
            f"  the hub listens on this machine only; keep a way to it open: ssh -N -R {port}:127.0.0.1:{port} HOST"
        )
        address = f"127.0.0.1:{port}"
    else:
        address = f"{_outer_host(address)}:{port}"
    if config.security.serves_tls:
        lines += [
            f"  here:  hetero-rl certs issue {worker.name}   then copy certs/{worker.name}.credentials to HOST"
            for worker in workers
        ]
    lines += [f"  there: {worker_command(config, worker, address)}" for worker in workers]
    return lines


def _outer_host(address: str) -> str:
    host, _ = split_address(address, "the hub's address")
    if host in _EVERYWHERE:
        return socket.getfqdn()
    return f"[{host}]" if ":" in host else host
