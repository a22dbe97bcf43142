"""Real processes on a model of a few thousand weights: what a person types, and what comes of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from hetero_rl.cli.main import app
from hetero_rl.launch.rundir import RunDirectory
from tests.tiny_run import tiny_run

COMMAND = [sys.executable, "-m", "hetero_rl.cli.main"]
PATIENCE = 600.0
"""Seconds: many times what any step of a test takes on a machine under load; nobody waits that long for a failure to show."""


class Training:
    """A started `hetero-rl train`; whatever is left of it is killed at the end of the test."""

    def __init__(self, run: RunDirectory, arguments: list[str], output: Path, env: dict[str, str]):
        self.run = run
        self.output = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "train", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def wait_for_step(self, step: int) -> None:
        """Returns once that step is in the metrics; a training that ends before fails the test."""
        while not any(record["step"] >= step for record in self.metrics()):
            self._tick()

    def wait_for_text(self, text: str) -> None:
        """Returns once that was printed."""
        while text not in self.output.read_text():
            self._tick()

    def wait_for(self, file: Path) -> None:
        """Returns once a file is there."""
        while not file.exists():
            self._tick()

    def wait_for_hub(self) -> str:
        """Returns the address of the hub once it listens."""
        self.wait_for(self.run.hub_address)
        return self.run.hub_address.read_text().strip()

    def _tick(self) -> None:
        try:
            self.process.wait(0.02)
        except subprocess.TimeoutExpired:
            return
        pytest.fail(f"the training ended too early:\n{self.text()}")

    def finish(self, timeout: float = PATIENCE) -> int:
        """Waits for the end; returns the exit code."""
        return self.process.wait(timeout)

    def children(self) -> list[int]:
        """Processes that the training started itself."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    def child(self, command: str) -> int:
        """The child that runs a command of ours, such as "worker"."""
        (found,) = [
            pid
            for pid in self.children()
            if command in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:4]
        ]
        return found

    def metrics(self) -> list[dict[str, float]]:
        """Records of the metrics file, whole lines only."""
        if not self.run.metrics.exists():
            return []
        lines = self.run.metrics.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def text(self) -> str:
        """What was printed, and the ends of the logs."""
        logs = [f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.run.logs.glob("*.log"))]
        return "\n".join([self.output.read_text(), *logs])

    def end(self) -> None:
        """Kills what is left; children end by their lifeline."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def environment():
    """One thread for each process: the tests share a small machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


@pytest.fixture(scope="session")
def config_file(tmp_path_factory):
    """Settings of a run that takes seconds; the starter model is made once."""
    directory = tmp_path_factory.mktemp("tiny")
    file = directory / "tiny.toml"
    text = tiny_run(
        model__starter__cache_dir=str(directory / "cache"),
        evaluation__every=3,
        checkpoint__every=2,
        hub__missed_heartbeats=100,
        inference__start_timeout=3000,
    )
    file.write_text(text)
    return file


@pytest.fixture(scope="session")
def hetero_rl(environment):
    """Runs `hetero-rl` with arguments to its end."""

    def _hetero_rl(*arguments: object, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return _hetero_rl


@pytest.fixture
def here(monkeypatch):
    """Runs `hetero-rl` with arguments in this process, which has the heavy libraries loaded; returns what it printed."""
    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()

    def _here(*arguments: object) -> str:
        with mock.patch.dict(os.environ):
            result = runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    return _here


@pytest.fixture
def train(tmp_path, config_file, environment):
    """Starts `hetero-rl train` in the test's own run directory; a second call with --resume goes on there."""
    started: list[Training] = []
    run = RunDirectory(tmp_path / "run")

    def _train(*arguments: str) -> Training:
        everything = [str(config_file), "--set", f"run.dir={run.root}", *arguments]
        training = Training(run, everything, tmp_path / f"output-{len(started)}.txt", environment)
        started.append(training)
        return training

    yield _train
    for training in started:
        training.end()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, config_file, hetero_rl):
    """One run to its end, shared by the tests that look at it."""
    run = RunDirectory(tmp_path_factory.mktemp("finished") / "run")
    result = hetero_rl("train", config_file, "--set", f"run.dir={run.root}", timeout=PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr
    return run, result


def pytest_collection_modifyitems(items):
    """Every test here starts processes and is given time for it."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1800))
