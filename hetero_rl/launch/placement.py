"""What the processes of a run ask of a cluster that places them: pure functions from settings to numbers.

A worker or a rank asks for CPUs, for devices by the resource name of its vendor, and for nodes with the labels that tell
vendors of one resource name apart. Both come from the vendor's backend package.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hetero_rl.config import Config
from hetero_rl.errors import ConfigError
from hetero_rl.launch.checks import STARTER
from hetero_rl.launch.plan import PlannedWorker, planned_workers
from hetero_rl.launch.remote import is_loopback
from hetero_rl.worker.backend import Backend

__all__ = [
    "NodeFacts",
    "Placement",
    "absolute_paths",
    "all_placements",
    "check_reachable",
    "check_room",
    "check_trainer_device",
    "cpus_in_all",
    "engine_spreads_itself",
    "placeable",
    "rank_placement",
    "worker_placement",
]

_GPU = "GPU"
"""The resource that Ray counts by a name of its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node of the cluster."""

    address: str
    """Its IP address, as other nodes reach it."""
    resources: Mapping[str, float]
    """What it has in all, in use or not."""
    labels: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one process asks for."""

    cpus: float
    resource: str = ""
    """Name of its devices; empty for none."""
    devices: int = 0
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def bundle(self) -> dict[str, float]:
        """As a bundle of a placement group, whose names are those of nodes."""
        devices = {self.resource: float(self.devices)} if self.devices else {}
        return {**({"CPU": self.cpus} if self.cpus else {}), **devices}

    def options(self) -> dict[str, object]:
        """As options of an actor."""
        found: dict[str, object] = {"num_cpus": self.cpus}
        if self.devices and self.resource == _GPU:
            found["num_gpus"] = self.devices
        elif self.devices:
            found["resources"] = {self.resource: self.devices}
        if self.labels:
            found["label_selector"] = dict(self.labels)
        return found

    def fits(self, node: NodeFacts) -> bool:
        """Whether the node is large enough when nothing else runs on it."""
        enough = all(node.resources.get(name, 0) >= amount for name, amount in self.bundle().items())
        return enough and all(node.labels.get(name) == value for name, value in self.labels.items())

    def describe(self) -> str:
        """For people."""
        parts = [f"{amount:g} {name}" for name, amount in self.bundle().items()]
        parts += [f"label {name}={value}" for name, value in self.labels.items()]
        return ", ".join(parts) or "nothing"


def engine_spreads_itself(config: Config, worker: PlannedWorker, backend: Backend) -> bool:
    """Whether the engine of a worker places its own processes on the cluster, over nodes: vLLM's Ray executor."""
    merged = config.inference.worker.model_dump() | dict(worker.settings)
    options = backend.engine_options(merged["engine"], merged["profile"], merged["engine_options"])
    return options.get("distributed_executor_backend") == "ray"


def worker_placement(config: Config, worker: PlannedWorker, backend: Backend) -> Placement:
    """What a worker asks for; without devices where its engine asks for them itself."""
    settings, needs = config.launcher, backend.scheduler
    own = needs.resource and not engine_spreads_itself(config, worker, backend)
    return Placement(
        cpus=settings.cpus_per_worker,
        resource=needs.resource if own else "",
        devices=settings.devices_per_worker if own else 0,
        labels=needs.labels,
    )


def rank_placement(config: Config, backend: Backend) -> Placement:
    """What each rank of the trainer asks for."""
    settings, needs = config.launcher, backend.scheduler
    return Placement(
        cpus=settings.cpus_per_rank,
        resource=needs.resource,
        devices=settings.devices_per_rank if needs.resource else 0,
        labels=needs.labels,
    )


def all_placements(
    config: Config, trainer: Backend, backends: Mapping[str, Backend]
) -> tuple[Placement, ...]:
    """What a rank asks for, then what a worker of each backend does."""
    workers = {
        worker.backend: worker_placement(config, worker, backends[worker.backend])
        for worker in planned_workers(config)
        if worker.backend in backends
    }
    return (rank_placement(config, trainer), *workers.values())


def cpus_in_all(config: Config) -> int:
    """CPUs that ranks and workers of a run ask for together."""
    settings = config.launcher
    workers = len(planned_workers(config)) if config.inference.workers else 0
    return math.ceil(settings.trainer_ranks * settings.cpus_per_rank + workers * settings.cpus_per_worker)


def check_trainer_device(config: Config, backend: Backend) -> None:
    """Raises ConfigError when the ranks would compute on devices that they do not ask for."""
    wanted = config.trainer.device.partition(":")[0]
    found = backend.torch_device or "cpu"
    if wanted not in {"auto", found}:
        raise ConfigError(
            f"trainer.device is {config.trainer.device!r}, but launcher.trainer_backend is {backend.name!r}, whose device is "
            f"{found!r}: name the backend of the trainer's devices, such as launcher.trainer_backend=cuda"
        )


def check_reachable(config: Config, own_address: str, nodes: Sequence[NodeFacts]) -> None:
    """Raises ConfigError when other hosts of the cluster cannot reach the hub that is started here."""
    others = sorted({node.address for node in nodes} - {own_address})
    if config.hub.address is None and others and is_loopback(config.hub.listen):
        raise ConfigError(
            f"hub.listen = {config.hub.listen!r}: {', '.join(others[:3])} of the Ray cluster cannot reach it. Set "
            f'hub.listen="{own_address}:7077" and credentials for it (docs/credentials.md)'
        )


def check_room(who: str, placement: Placement, nodes: Sequence[NodeFacts]) -> None:
    """Raises ConfigError when no node is large enough, or has the labels; rooms that are in use are waited for."""
    if not any(placement.fits(node) for node in nodes):
        raise ConfigError(
            f"no node of the Ray cluster has what {who} asks for ({placement.describe()}); there are: "
            + "; ".join(_described(node) for node in nodes)
            + ". `hetero-rl ray node` starts a node with the label and resource of its vendor"
        )


def placeable(
    config: Config,
    backends: Mapping[str, Backend],
    nodes: Sequence[NodeFacts],
    notify: Callable[[str], None],
) -> dict[str, Backend]:
    """The backends whose workers have a place on the cluster; those of others are awaited from another island."""
    found = {}
    for worker in planned_workers(config):
        backend = backends.get(worker.backend)
        if backend is None or worker.backend in found:
            continue
        placement = worker_placement(config, worker, backend)
        if any(placement.fits(node) for node in nodes):
            found[worker.backend] = backend
        else:
            notify(
                f"no node of the Ray cluster has {placement.describe()}, as a worker of {backend.name} asks for"
            )
    return found


def absolute_paths(config: Config) -> Config:
    """Settings whose paths mean the same in every directory, for processes of other nodes."""
    security = {name: value.absolute() for name, value in config.security if isinstance(value, Path)}
    model = (
        {} if config.model.path == STARTER else {"path": str(Path(config.model.path).expanduser().absolute())}
    )
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"dir": config.run.dir.absolute()}),
            "model": config.model.model_copy(update=model),
            "task": config.task.model_copy(
                update={} if config.task.path is None else {"path": config.task.path.absolute()}
            ),
            "security": config.security.model_copy(update=security),
        }
    )


def _described(node: NodeFacts) -> str:
    counted = [
        f"{amount:g} {name}"
        for name, amount in sorted(node.resources.items())
        if name == "CPU" or name.isupper()
    ]
    labels = [
        f"{name}={value}" for name, value in sorted(node.labels.items()) if not name.startswith("ray.io/")
    ]
    return f"{node.address} with {', '.join([*counted, *labels])}"
