"""Processes that a benchmark measures against: a hub, and whatever else serves; and the CPU time they take. Linux."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Generator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hetero_rl.config.tree import Config
from hetero_rl.errors import UnreachableError
from hetero_rl.hub.main import serve
from hetero_rl.hub.server import ADDRESS_FILE

__all__ = ["Served", "cpu_seconds", "running_hub_process", "served"]

_START_SECONDS = 600.0
_STOP_SECONDS = 20.0
_PAUSE = 0.05
_SCHEDULER_CLOCK = 2


class Served:
    """A server in a process of its own."""

    def __init__(self, address: str, process: BaseProcess) -> None:
        self.address = address
        self._process = process

    @property
    def process_id(self) -> int:
        """Of the process."""
        return self._process.pid or 0

    @property
    def cpu_seconds(self) -> float:
        """What the process has computed so far."""
        return cpu_seconds(self.process_id)


def cpu_seconds(process_id: int) -> float:
    """User and system seconds of a process, all of its threads together.

    Linux makes the number of a process's clock out of the process id, see clock_getcpuclockid(3), which Python lacks.
    /proc counts in hundredths of a second, which is longer than many a measurement.
    """
    return time.clock_gettime((~process_id << 3) | _SCHEDULER_CLOCK)


@contextlib.contextmanager
def served(target: Callable[..., None], *arguments: Any, address_file: Path) -> Generator[Served]:
    """Runs a function that writes its address into a file and serves until it is terminated.

    Raises:
        UnreachableError: It ended, or wrote no address in time.
    """
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    try:
        yield Served(_address(address_file, process.is_alive), process)
    finally:
        process.terminate()
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def running_hub_process(
    run_dir: Path, config: Config | None = None
) -> contextlib.AbstractContextManager[Served]:
    """A hub with its journal and blobs under a directory."""
    return served(serve, config or Config(), run_dir, address_file=run_dir / "hub" / ADDRESS_FILE)


def _address(file: Path, alive: Callable[[], bool]) -> str:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and alive():
        with contextlib.suppress(FileNotFoundError):
            if text := file.read_text(encoding="utf-8").strip():
                return text
        time.sleep(_PAUSE)
    raise UnreachableError(f"a server of the benchmark did not write {file} within {_START_SECONDS:g} s")
