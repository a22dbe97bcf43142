import sys
import textwrap

import pytest

from hetero_rl.launch.process import ManagedProcess, ProcessSpec


@pytest.fixture
def spec(tmp_path):
    """Makes a process description of a short Python program."""

    def _spec(program: str, name: str = "child", **environment: str) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            arguments=(sys.executable, "-c", textwrap.dedent(program)),
            log=tmp_path / f"{name}.log",
            environment=environment,
        )

    return _spec


@pytest.fixture
def start(spec):
    """Starts a short Python program; whatever is left of it is killed after the test."""
    started: list[ManagedProcess] = []

    def _start(program: str, **environment: str) -> ManagedProcess:
        process = ManagedProcess(spec(program, **environment))
        started.append(process)
        return process

    yield _start
    for process in started:
        process.stop(0)
