"""A whole run on nodes that `hetero-rl ray node` keeps, through the kill of a worker, of a rank and of a node."""

import json
import os
import signal
import socket
import subprocess

import pytest

from tests.tiny_run import tiny_run

pytest.importorskip(
    "ray", reason="Ray is not installed here; `make test-ray` has an environment of its own for it"
)
psutil = pytest.importorskip("psutil", reason="comes with Ray")
pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PATIENCE = 1200.0
STEPS = 14


def free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


@pytest.fixture
def nodes(started, tmp_path):
    """A head with two GPUs and a node with one NPU; returns the address of the head and the second node's process."""
    port = free_port()
    address = f"{own_address()}:{port}"
    first = ("--head", "--port", port, "--backend", "green", "--devices", 2)
    second = ("--address", address, "--backend", "red", "--devices", 1)
    head = started("ray", "node", *first, "--cpus", 4, output=tmp_path / "head.out")
    wait_until(lambda: listens(port), head, tmp_path / "head.out")
    red = started("ray", "node", *second, "--cpus", 2, output=tmp_path / "red.out")
    return address, red


def own_address():
    import ray

    return ray.util.get_node_ip_address()


def listens(port):
    with socket.socket() as caller:
        return caller.connect_ex((own_address(), port)) == 0


def wait_until(happened, process, output):
    """Returns once something is so, for good; a process that ends before fails the test."""
    while not happened():
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"it ended too early:\n{output.read_text()}")


def steps_made(run):
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("\n")), default=0)


def process_with(*words, rank=None):
    """The process whose command line has these words, one of which is nobody else's: the oldest, as it may be forking right now."""
    found = [
        process
        for process in psutil.process_iter(["cmdline", "create_time"])
        if all(word in (process.info["cmdline"] or []) for word in words)
        and (rank is None or process.environ().get("RANK") == str(rank))
    ]
    return min(found, key=lambda process: process.info["create_time"]).pid


def raylet_of(process):
    (found,) = [
        child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "raylet"
    ]
    return found


def hub_of(run):
    return (run / "hub" / "address").read_text().strip()


def test_a_run_goes_on_through_the_kill_of_a_worker_a_rank_and_a_node(nodes, started, environment, tmp_path):
    address, red = nodes
    settings, output, run = tmp_path / "tiny.toml", tmp_path / "train.out", tmp_path / "run"
    settings.write_text(
        tiny_run(
            run__steps=STEPS,
            model__starter__cache_dir=str(tmp_path / "cache"),
            evaluation__every=0,
            checkpoint__every=2,
            hub__heartbeat_seconds=1,
            hub__missed_heartbeats=15,
            inference__backends=["red"],
            inference__start_timeout=3000,
            launcher__kind="ray",
            launcher__trainer_backend="green",
            launcher__trainer_ranks=2,
            launcher__node_timeout=1200,
        )
    )
    flags = ("--set", f"run.dir={run}", "--set", f"launcher.address={address}")
    train = started("train", settings, *flags, output=output)

    wait_until(lambda: steps_made(run) >= 1, train, output)
    os.kill(process_with("--name", "red-0", hub_of(run)), signal.SIGKILL)
    wait_until(lambda: steps_made(run) >= 5, train, output)
    os.kill(process_with("trainer-rank", hub_of(run), rank=1), signal.SIGKILL)
    wait_until(lambda: "goes on from its checkpoint" in output.read_text(), train, output)
    raylet_of(red).kill()

    assert train.wait(PATIENCE) == 0, output.read_text()
    text = output.read_text()
    assert f"{STEPS} of {STEPS} steps" in text
    assert "worker-red-0 was ended by SIGKILL" in text
    assert "trainer rank" in text
    assert "worker-red-0 is lost with its node" in text
    assert "ray-node ended with exit code" in (tmp_path / "red.out").read_text()
    assert [record["step"] for record in map(json.loads, (run / "metrics.jsonl").open())][-1] == STEPS
