"""What is started for a run: pure functions from settings to process descriptions."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from hetero_rl.config import Config
from hetero_rl.launch.process import ProcessSpec
from hetero_rl.launch.rundir import RunDirectory

__all__ = ["hub_spec", "worker_names", "worker_spec"]

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


def worker_names(backends: Sequence[str], workers: int) -> Iterator[tuple[str, str]]:
    """(backend, worker name) of every local worker, such as ("cpu", "cpu-0")."""
    for backend in backends:
        for index in range(workers):
            yield backend, f"{backend}-{index}"


def worker_spec(
    config: Config, run: RunDirectory, *, backend: str, name: str, hub: str, environment: Mapping[str, str]
) -> ProcessSpec:
    """A local worker.

    Args:
        config: The resolved settings.
        run: The directory of the run.
        backend: Name of its backend.
        name: Name of the worker.
        hub: host:port of the hub.
        environment: What the backend declares for its processes.
    """
    threads = config.inference.worker.threads
    return ProcessSpec(
        name=f"worker-{name}",
        arguments=(
            *COMMAND,
            "worker",
            str(run.config),
            "--hub",
            hub,
            "--infer-backend",
            backend,
            "--name",
            name,
            LIFELINE_FLAG,
        ),
        log=run.log(f"worker-{name}"),
        environment={**environment, **({"OMP_NUM_THREADS": str(threads)} if threads else {})},
    )
