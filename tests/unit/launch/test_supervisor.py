"""The supervisor with stand-ins for the commands: a hub that writes its address, workers that wait for their end."""

import contextlib
import queue
import sys
import textwrap
from types import SimpleNamespace

import pytest

from hetero_rl.config import load_config
from hetero_rl.errors import LaunchError, UnreachableError
from hetero_rl.files import write_whole
from hetero_rl.launch.restart import RestartPolicy
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.launch.supervisor import Supervisor
from hetero_rl.wire.messages import WorkerState
from hetero_rl.worker.backend import Backend, DeviceReport

STAND_IN = """
import os, pathlib, signal, sys
command, run = sys.argv[1], pathlib.Path(sys.argv[2]).parent
behaviour = os.environ.get(f"STAND_IN_{command.upper()}", "")
print(" ".join(sys.argv[1:]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if behaviour:
    sys.exit(f"{command} says: {behaviour}")
if command == "hub":
    (run / "hub" / "address").write_text("127.0.0.1:4242")
with (run / "order").open("a") as order:
    order.write(f"start {command}\\n")
try:
    while True:
        signal.pause()
finally:
    with (run / "order").open("a") as order:
        order.write(f"end {command}\\n")
"""


class Fleet:
    """A hub's fleet service that says what the test wants."""

    def __init__(self):
        self.run: object | None = object()
        self.states: list[WorkerState] = []
        self.reachable = True
        self.backend = "cpu"

    def probe(self, address):
        if not self.reachable:
            raise UnreachableError(f"nobody at {address}")

    def run_status(self):
        return SimpleNamespace(run=self.run)

    def list_workers(self, *, include_gone):
        return tuple(
            SimpleNamespace(state=state, worker_name="w", backend=self.backend) for state in self.states
        )


def _backend(name: str) -> Backend:
    report = DeviceReport(available=True, devices=("one",), advice="")
    return Backend(
        name=name, vendor="x", description="", engines={}, default_engine="", detect=lambda: report
    )


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def supervise(tmp_path, monkeypatch, fleet):
    """Makes a supervisor over stand-ins; returns it with its run directory, failures and notes."""
    program = tmp_path / "stand_in.py"
    program.write_text(textwrap.dedent(STAND_IN))
    monkeypatch.setattr("hetero_rl.launch.plan.COMMAND", (sys.executable, str(program)))
    made: list[Supervisor] = []

    def _supervise(*overrides: str, here: tuple[str, ...] | None = None, **behaviours: str):
        for command, behaviour in behaviours.items():
            monkeypatch.setenv(f"STAND_IN_{command.upper()}", behaviour)
        config = load_config(overrides=[f"run.dir={tmp_path / 'run'}", *overrides])
        run = RunDirectory(config.run.dir)
        run.prepare()
        write_whole(run.config, config.model_dump_json())
        failures: queue.Queue[Exception] = queue.Queue()
        notes: list[str] = []
        supervisor = Supervisor(
            config,
            run,
            backends={name: _backend(name) for name in (config.inference.backends if here is None else here)},
            probe=fleet.probe,
            connect=lambda address: contextlib.nullcontext(fleet),
            on_failure=failures.put,
            notify=notes.append,
            policy=RestartPolicy(max_restarts=1, first_delay=0.0),
        )
        made.append(supervisor)
        return SimpleNamespace(supervisor=supervisor, run=run, failures=failures, notes=notes)

    yield _supervise
    for supervisor in made:
        supervisor.kill()
        supervisor.close()


def test_the_hub_comes_first_and_the_workers_get_its_address(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise("inference.workers=2")

    assert run.supervisor.start() == "127.0.0.1:4242"
    for worker in run.supervisor._workers:
        while "--hub" not in worker.process.spec.log.read_text():
            worker.process.wait(0.01)

    assert [worker.process.spec.name for worker in run.supervisor._workers] == [
        "worker-cpu-0",
        "worker-cpu-1",
    ]
    log = run.run.log("worker-cpu-1").read_text()
    assert "--hub 127.0.0.1:4242 --infer-backend cpu --name cpu-1 --end-with-parent" in log


def test_close_ends_workers_before_the_hub(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise()
    run.supervisor.start()
    order = run.run.root / "order"
    while "start worker" not in order.read_text():
        run.supervisor._workers[0].process.wait(0.01)

    run.supervisor.close()

    assert order.read_text().splitlines() == ["start hub", "start worker", "end worker", "end hub"]
    assert run.failures.empty()


def test_a_hub_that_does_not_come_up_is_an_error_with_the_end_of_its_log(supervise):
    run = supervise(hub="no disk")

    with pytest.raises(LaunchError, match=r"hub ended with exit code 1(.|\n)*\| hub says: no disk"):
        run.supervisor.start()


def test_a_killed_hub_is_started_again_where_its_peers_know_it(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise()
    run.supervisor.start()
    hub = run.supervisor._hub
    first = hub.process

    first.kill()
    while hub.process is first or "hub.listen" not in run.run.log("hub").read_text():
        hub.process.wait(0.01)

    assert '--set hub.listen="127.0.0.1:4242"' in run.run.log("hub").read_text()
    assert run.failures.empty()


def test_the_run_fails_once_when_no_worker_can_be_kept(supervise):
    run = supervise("inference.workers=2", worker="out of memory")
    run.supervisor.start()

    error = run.failures.get(timeout=100)

    assert "ended with exit code 1" in str(error)
    assert "| worker says: out of memory" in str(error)
    run.supervisor.close()
    assert run.failures.empty()


def test_the_run_goes_on_with_a_remote_worker_when_the_local_one_is_given_up(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise(worker="out of memory")
    run.supervisor.start()

    while not run.supervisor._workers[0].ended or len(run.notes) < 2:
        run.supervisor._hub.process.wait(0.01)

    assert run.notes[-1].startswith("worker-cpu-0 ended with exit code 1. The end of")
    assert run.failures.empty()


def test_a_worker_that_does_not_join_in_time_is_an_error_with_the_end_of_its_log(supervise):
    run = supervise("inference.start_timeout=0.2")
    run.supervisor.start()

    error = run.failures.get(timeout=100)

    assert "worker-cpu-0 did not join the run within 0.2 s" in str(error)


def test_without_local_workers_the_error_says_how_to_start_one(supervise):
    run = supervise("inference.start_timeout=0.2", "inference.workers=0")
    run.supervisor.start()

    error = run.failures.get(timeout=100)

    assert "hetero-rl worker --hub 127.0.0.1:4242 --infer-backend cpu --name cpu-0" in str(error)


def test_a_backend_without_a_device_here_is_asked_for_on_another_machine_with_the_command(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise("inference.backends=['ascend']", here=())

    run.supervisor.start()

    text = run.run.remote_workers.read_text()
    assert run.notes == text.splitlines()
    assert run.notes[0] == "waiting for a worker of ascend on another machine:"
    assert "hetero-rl worker --hub 127.0.0.1:4242 --infer-backend ascend --name ascend-0" in run.notes[-1]
    assert run.supervisor._workers == []


def test_a_worker_of_another_machine_that_never_comes_ends_the_run_with_the_command(supervise):
    run = supervise("inference.backends=['ascend']", "inference.remote_worker_timeout=0.2", here=())
    run.supervisor.start()

    error = run.failures.get(timeout=30)

    assert str(error).startswith("no worker joined within 0.2 s; inference.remote_worker_timeout")
    assert "--infer-backend ascend --name ascend-0" in str(error)


def test_with_workers_here_a_missing_one_elsewhere_is_told_and_the_run_goes_on(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise(
        "inference.backends=['cpu', 'ascend']", "inference.remote_worker_timeout=0.2", here=("cpu",)
    )
    run.supervisor.start()

    run.supervisor._first_worker.join(30)

    assert run.notes[-1].startswith("no worker of ascend joined within 0.2 s; the run goes on without")
    assert run.failures.empty()


def test_a_worker_that_joins_from_elsewhere_is_told(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    fleet.backend = "ascend"
    run = supervise("inference.backends=['cpu', 'ascend']", here=("cpu",))
    run.supervisor.start()

    run.supervisor._first_worker.join(30)

    assert run.notes[-1] == "w (ascend) has joined"


def test_members_of_a_fleet_get_their_own_settings(supervise, fleet):
    fleet.states = [WorkerState.ACTIVE]
    run = supervise(
        "inference.fleet=[{backend = 'cpu'}, {backend = 'cpu', worker = {emulate = 'bf16', threads = 3}}]",
    )
    run.supervisor.start()

    plain, emulating = (worker.process.spec for worker in run.supervisor._workers)

    assert (plain.name, emulating.name) == ("worker-cpu-0", "worker-cpu-bf16-0")
    assert not [argument for argument in plain.arguments if argument.startswith("--set")]
    assert '--set=inference.worker.emulate="bf16"' in emulating.arguments
    assert "--set=inference.worker.threads=3" in emulating.arguments
    assert emulating.environment["OMP_NUM_THREADS"] == "3"


def test_a_given_hub_is_not_started_but_must_answer(supervise, fleet):
    fleet.reachable = False
    run = supervise("hub.address=hub.example:1")

    with pytest.raises(UnreachableError, match="nobody at hub\\.example:1"):
        run.supervisor.start()

    assert not run.run.log("hub").exists()
    assert run.supervisor._workers == []
