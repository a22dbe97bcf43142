"""The Ray cluster that a run is placed on: joined as a driver, looked at, left. Never stopped: others may use it."""

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from hetero_rl.config.tree import LauncherConfig
from hetero_rl.errors import ConfigError, LaunchError
from hetero_rl.launch.placement import NodeFacts, Placement

__all__ = ["QUIET", "Cluster", "check_ray", "joined_cluster"]

LOOK_SECONDS = 0.5
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Variables of every process of Ray that is started here: nothing is told to anybody outside."""


def check_ray() -> None:
    """Raises ConfigError saying how Ray is installed, when it is not."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "launcher.kind is 'ray', but Ray is not installed: pip install -c constraints.txt 'hetero-rl[ray]' on every node, "
            "the same version everywhere (docs/guides/ray.md)"
        )


class Cluster:
    """A joined cluster.

    Args:
        ray: The module, connected.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @property
    def own_address(self) -> str:
        """IP address of this host, as other nodes know it."""
        return str(self._ray.util.get_node_ip_address())

    @property
    def gcs_address(self) -> str:
        """host:port of the head, for processes that join by themselves."""
        return str(self._ray.get_runtime_context().gcs_address)

    def nodes(self) -> tuple[NodeFacts, ...]:
        """The nodes that are alive."""
        return tuple(
            NodeFacts(
                address=node["NodeManagerAddress"],
                resources=dict(node["Resources"]),
                labels=dict(node.get("Labels") or {}),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        )

    def await_nodes(
        self, placements: Sequence[Placement], timeout: float, waiting: Callable[[Placement], None]
    ) -> tuple[NodeFacts, ...]:
        """Waits until each placement fits a node, at most `timeout` seconds; the nodes then there.

        Args:
            placements: What is asked for.
            timeout: Seconds in all.
            waiting: Called with each that is waited for.
        """
        deadline = time.monotonic() + timeout
        for placement in placements:
            told = False
            while not any(placement.fits(node) for node in self.nodes()) and time.monotonic() < deadline:
                if not told:
                    waiting(placement)
                    told = True
                time.sleep(LOOK_SECONDS)
        return self.nodes()


@contextlib.contextmanager
def joined_cluster(settings: LauncherConfig, *, own_cpus: int) -> Generator[Cluster]:
    """Joins the cluster of the settings for the length of a block; what was placed for this driver ends with it.

    Args:
        settings: Which cluster.
        own_cpus: CPUs that a node of this run's own offers, so that all that it was made for has room.

    Raises:
        ConfigError: Ray is not installed, or no cluster is there.
        LaunchError: A cluster is there but does not take this process: another version of Ray or Python, a missing token.
    """
    check_ray()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    own = settings.address == "local"
    try:
        ray.init(
            address=settings.address,
            namespace="hetero-rl",
            log_to_driver=False,
            configure_logging=False,
            **({"include_dashboard": False, "num_cpus": own_cpus} if own else {}),
        )
    except ConnectionError as error:
        raise ConfigError(
            f"launcher.address = {settings.address!r}: no Ray cluster answers ({str(error).splitlines()[0]}). Start a node on "
            "this host with `hetero-rl ray node --head`, or set launcher.address=local for one host"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise LaunchError(
            f"the Ray cluster at {settings.address!r} does not take this process: {error}"
        ) from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()
