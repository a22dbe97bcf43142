"""An actor that holds one process on a node of the cluster.

  driver                        node
┌──────────┐  calls of Ray  ┌──────────────┐  pipe (lifeline)  ┌─────────────────────────────┐
│ ray_keeper ──────────────► ProcessHolder ├──────────────────►│ hetero-rl worker / a rank   │── gRPC ──► hub
│ ray_ranks │◄── how it ended┤ (an actor)  │                   │ in a session of its own     │
└──────────┘                └──────────────┘                   └─────────────────────────────┘

The process is a child and not the actor itself: an engine or a collective that hangs is drained by SIGTERM and killed
within a grace, and the commands are those that people type. Ray ends an actor when its driver, its node or the actor
dies; the end of the pipe then drains the child (`launch.lifeline`). What Ray carries are strings and numbers.
"""

import contextlib
import dataclasses
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hetero_rl.launch.process import ManagedProcess, ProcessSpec, log_tail

__all__ = ["End", "Order", "Place", "ProcessHolder", "holder_on"]

CONFIG_FILE = "{config}"
RESULT_FILE = "{result}"
_CALLS_AT_ONCE = 4
"""One call waits for the process; others ask it to stop, or read its log, meanwhile."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is started on a node."""

    name: str
    command: tuple[str, ...]
    """Arguments of `hetero-rl`; CONFIG_FILE and RESULT_FILE stand for files on that node."""
    config: str
    """The resolved settings, as JSON."""
    log: str
    """Where its output goes if that directory is on the node, as on a shared file system; else a temporary directory."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unset: tuple[str, ...] = ()
    """Variables that the node has and the process shall not have when they are empty."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an actor came to be."""

    address: str
    node_id: str
    devices: Mapping[str, str]
    """Variables that narrow down its devices, as Ray set them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a process ended."""

    code: int
    """Exit code; negative for a signal."""
    sentence: str
    tail: str
    """The end of its log."""
    result: str = ""
    """What it wrote into RESULT_FILE."""


class ProcessHolder:
    """Holds one process; made by `holder_on` on the node."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hetero-rl-"))
        self._process: ManagedProcess | None = None

    @staticmethod
    def place() -> Place:
        """Where this is."""
        import ray

        return Place(
            address=ray.util.get_node_ip_address(),
            node_id=ray.get_runtime_context().get_node_id(),
            devices={name: value for name, value in os.environ.items() if name.endswith("VISIBLE_DEVICES")},
        )

    @staticmethod
    def free_port() -> int:
        """A port that nobody listens on at this moment."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            return int(listener.getsockname()[1])

    def start(self, order: Order) -> int:
        """Starts the process; returns its id on this node, which is never the false value that a call given up returns."""
        config = self._directory / "config.json"
        config.write_text(order.config, encoding="utf-8")
        files = {CONFIG_FILE: str(config), RESULT_FILE: str(self._result)}
        for name in order.unset:
            if not os.environ.get(name, "unset"):
                del os.environ[name]
        self._process = ManagedProcess(
            ProcessSpec(
                name=order.name,
                arguments=(
                    *(sys.executable, "-m", "hetero_rl.cli.main"),
                    *(files.get(part, part) for part in order.command),
                ),
                log=self._log(order),
                environment=order.environment,
            )
        )
        return self._process.pid

    def wait(self, seconds: float) -> End | None:
        """Waits for the end of the process; None while it runs."""
        process = self._process
        if process is None or (code := process.wait(seconds)) is None:
            return None
        result = self._result.read_text(encoding="utf-8") if self._result.exists() else ""
        return End(
            code=code, sentence=process.describe_exit(), tail=log_tail(process.spec.log), result=result
        )

    def pid(self) -> int | None:
        """Its process id on this node."""
        return None if self._process is None else self._process.pid

    def request_stop(self) -> None:
        """Asks the process to drain."""
        if self._process is not None:
            self._process.request_stop()

    def close(self) -> None:
        """Kills what is left of the process and removes its files."""
        if self._process is not None:
            self._process.stop(0)
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _result(self) -> Path:
        return self._directory / "result.json"

    def _log(self, order: Order) -> Path:
        wanted = Path(order.log)
        with contextlib.suppress(OSError), wanted.open("ab"):
            return wanted
        return self._directory / wanted.name


def holder_on(options: Mapping[str, object], **more: object) -> Any:
    """A handle of an actor that is being placed; calls wait until it is.

    Args:
        options: What it asks for (`placement.Placement.options`).
        more: Further options of Ray.
    """
    import ray

    made: Callable[..., Any] = ray.remote(ProcessHolder)
    # Ray would start an actor again without its process: who called it does, with a delay and a bound.
    return made.options(max_restarts=0, max_concurrency=_CALLS_AT_ONCE, **{**options, **more}).remote()  # type: ignore[attr-defined]  # Ray's handles have no types
