"""What is started for a run: pure functions from settings to process descriptions."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_rl.config import Config
from hetero_rl.config.show import toml_value
from hetero_rl.launch.process import ProcessSpec
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.worker.backend import Backend
from hetero_rl.worker.emulations import labelled_backend

__all__ = ["PlannedWorker", "hub_spec", "planned_workers", "visible_devices", "worker_spec"]

COMMAND = (sys.executable, "-m", "hetero_rl.cli.main")
LIFELINE_FLAG = "--end-with-parent"


def hub_spec(run: RunDirectory, address: str | None) -> ProcessSpec:
    """The hub of a run.

    Args:
        run: Its directory; the resolved settings lie there.
        address: host:port that peers already know it by, for a restart; None listens as the settings say.
    """
    fixed = () if address is None else ("--set", f'hub.listen="{address}"')
    return ProcessSpec(
        name="hub",
        arguments=(*COMMAND, "hub", str(run.config), "--run-dir", str(run.root), LIFELINE_FLAG, *fixed),
        log=run.log("hub"),
        # The hub computes nothing; its gRPC threads need no share of the cores that torch pins.
        environment={"OMP_NUM_THREADS": "1"},
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorker:
    """One worker of a run, wherever it will be started."""

    name: str
    """Name at the hub, such as "cpu-0"."""
    backend: str
    index: int
    """Which of the workers of its backend, from 0."""
    settings: Mapping[str, Any]
    """Settings of `inference.worker` that are its own."""

    @property
    def label(self) -> str:
        """Its backend as the hub sees it; what it emulates is part of that."""
        return labelled_backend(self.backend, self.settings.get("emulate"))


def planned_workers(config: Config) -> tuple[PlannedWorker, ...]:
    """Every worker that the settings ask for, group by group."""
    counts: Counter[str] = Counter()
    planned = []
    emulate = config.inference.worker.emulate
    emulated = {"emulate": emulate} if emulate else {}
    for member in config.inference.members:
        for number in range(member.workers):
            planned.append(
                PlannedWorker(
                    name=f"{member.label}-{number}",
                    backend=member.backend,
                    index=counts[member.backend],
                    settings={**emulated, **member.worker},
                )
            )
            counts[member.backend] += 1
    return tuple(planned)


def visible_devices(backend: Backend, ids: Sequence[str], index: int, workers: int) -> dict[str, str]:
    """The share of a host's devices that one of several workers of a backend gets; all of them for a single worker.

    Args:
        backend: Names the variable.
        ids: Ids of the devices that this process may use.
        index: Which of the workers, from 0.
        workers: Workers of the backend on this host.
    """
    if workers < 2 or not ids or not backend.visible_devices:
        return {}
    share = max(1, len(ids) // workers)
    start = (index * share) % len(ids)
    return {backend.visible_devices: ",".join(ids[start : start + share])}


def worker_spec(
    config: Config,
    run: RunDirectory,
    worker: PlannedWorker,
    *,
    hub: str,
    backend: Backend,
    environment: Mapping[str, str],
) -> ProcessSpec:
    """A local worker.

    Args:
        config: The resolved settings.
        run: The directory of the run.
        worker: Which one.
        hub: host:port of the hub.
        backend: Its backend.
        environment: Variables of this worker alone, such as its share of the devices.
    """
    merged = config.inference.worker.model_dump() | dict(worker.settings)
    threads = merged["threads"]
    own = [f"--set=inference.worker.{key}={toml_value(key, value)}" for key, value in worker.settings.items()]
    return ProcessSpec(
        name=f"worker-{worker.name}",
        arguments=(
            *COMMAND,
            "worker",
            str(run.config),
            "--hub",
            hub,
            "--infer-backend",
            worker.backend,
            "--name",
            worker.name,
            LIFELINE_FLAG,
            *own,
        ),
        log=run.log(f"worker-{worker.name}"),
        environment={
            **backend.process_environment(merged["profile"]),
            **environment,
            **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        },
    )
