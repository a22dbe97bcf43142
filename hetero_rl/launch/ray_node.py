"""A node of a Ray cluster, kept running: what `hetero-rl ray node` does.

    this process ──► keeper ──► `ray start --block` (a child in a session of its own) ──► raylet, and on a head the GCS
                        │                 └── ends when any of Ray's processes ends
                        └── started again with a delay of at most a minute, for most of a day; a wrong command is given up at once

A raylet that the head took for dead, because the link was cut, kills itself when it hears of it and never rejoins. The
keeper starts a new one, and what was placed on the old one is placed again by the launcher of the run. `ray stop` ends
every process of Ray on a host, whoever started it; it is never called. Dashboards and agents that listen are off.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from hetero_rl.errors import ConfigError, LaunchError
from hetero_rl.launch.checks import split_address
from hetero_rl.launch.interrupts import Interrupts
from hetero_rl.launch.keeper import Keeper
from hetero_rl.launch.process import ProcessSpec
from hetero_rl.launch.ray_cluster import QUIET, check_ray
from hetero_rl.launch.restart import RestartPolicy
from hetero_rl.worker.backend import Backend, find_backend, installed_backends

__all__ = ["NodeOptions", "keep_node", "node_command", "node_environment"]

_LOG = logging.getLogger(__name__)

GRACE_SECONDS = 20.0
NODE_POLICY = RestartPolicy(max_restarts=1000, longest_delay=60.0)
"""A link may be cut for hours, and a busy host may miss Ray's own 15 s for the start of its agents: most of a day of tries."""
VENDOR_LABEL = "vendor"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What a person says of a node."""

    head: bool = False
    address: str | None = None
    """host:port of the head to join."""
    backend: str | None = None
    devices: int | None = None
    cpus: int | None = None
    node_ip: str | None = None
    port: int = 6379


def node_command(options: NodeOptions) -> tuple[str, ...]:
    """The command that runs a node, with the label and the resource of its vendor.

    Raises:
        ConfigError: Neither a head nor the address of one, or both; or the address is none.
        BackendNotFoundError: The backend is not installed.
    """
    if options.head == (options.address is not None):
        raise ConfigError("give --head to begin a cluster, or --address HOST:PORT to join one")
    backend = find_backend(options.backend) if options.backend else _backend_here()
    parts = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    parts.append("--include-log-monitor=false")  # logs stay where they are written
    if options.address is None:
        parts += ["--head", f"--port={options.port}", "--include-dashboard=false"]
    else:
        split_address(options.address, "--address")
        parts.append(f"--address={options.address}")
    if options.node_ip:
        parts.append(f"--node-ip-address={options.node_ip}")
    if options.cpus is not None:
        parts.append(f"--num-cpus={options.cpus}")
    labels = {VENDOR_LABEL: backend.vendor, **backend.scheduler.labels}
    parts += ["--labels", ",".join(f"{name}={value}" for name, value in labels.items())]
    return (*parts, *_resources(backend, options.devices))


def node_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Variables that a node gets beside those that are set.

    Args:
        given: This process's own variables.

    Raises:
        ConfigError: There is no token, and nobody said that none is wanted: whoever reaches a node's ports runs code on it.
    """
    if given.get("RAY_AUTH_MODE"):
        return dict(QUIET)
    file = given.get("RAY_AUTH_TOKEN_PATH") or str(Path(given.get("HOME", "/")) / ".ray" / "auth_token")
    if not given.get("RAY_AUTH_TOKEN") and not Path(file).is_file():
        raise ConfigError(
            f"{file}: no token of Ray. Whoever reaches a node's ports without one runs code on it. Make one with `ray "
            "get-auth-token --generate` and copy the file to every node, or set RAY_AUTH_MODE=disabled on a network of your own"
        )
    return {**QUIET, "RAY_AUTH_MODE": "token"}


def _backend_here() -> Backend:
    """The first backend with a device of its own on this host; the CPU without one."""
    for name in sorted(installed_backends()):
        backend = find_backend(name)
        if backend.scheduler.resource and backend.detect().available:
            return backend
    return find_backend("cpu")


def _resources(backend: Backend, devices: int | None) -> list[str]:
    # Ray would ask vendors' tools itself, each in its own way; what is said here holds for all.
    resource = backend.scheduler.resource
    found = devices if devices is not None else len(backend.detect().ids) if resource else 0
    if resource == "GPU" or not resource:
        return [f"--num-gpus={found if resource else 0}"]
    return ["--num-gpus=0", "--resources", json.dumps({resource: found})]


def keep_node(options: NodeOptions, policy: RestartPolicy | None = None) -> None:
    """Runs a node until a signal asks this process to end; raises LaunchError when it keeps dying."""
    check_ray()
    command, environment = node_command(options), node_environment(os.environ)
    _LOG.info("starting %s", " ".join(command[1:]))
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="hetero-rl-ray-") as directory:
        spec = ProcessSpec(
            name="ray-node", arguments=command, log=Path(directory) / "ray-node.log", environment=environment
        )
        keeper = Keeper(
            lambda: spec, policy or NODE_POLICY, _LOG.warning, lambda _: over.set(), may_leave=False
        )
        with Interrupts(over.set, keeper.kill):
            keeper.start()
            over.wait()
            keeper.close(GRACE_SECONDS)
        if keeper.ended:
            raise LaunchError(keeper.describe("ended"))
