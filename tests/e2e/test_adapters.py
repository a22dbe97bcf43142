"""A run that publishes adapters beside a frozen base, with real processes: one worker begins it, one that joins late carries it on."""

import json
import signal
import subprocess
import sys

import pytest

from hetero_rl.config import Config
from hetero_rl.hub.journal_reader import JournalReader
from hetero_rl.launch.hub_access import connect_fleet
from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.wire.messages import WeightEncoding

pytest.importorskip("peft", reason="the extra `lora` is not installed")
pytest.importorskip("numba", reason="the codec extra is not installed")

PATIENCE = 600.0
ADAPTERS = (
    "--set", "trainer.lora.rank=4",
    "--set", "trainer.lora.publish=adapter",
    "--set", "optimizer.learning_rate=0.02",
    "--set", "weights.anchor_every=4",
    "--set", "evaluation.every=0",
)  # fmt: skip
TWICE = 8
"""More steps than can wait for a batch."""


@pytest.fixture
def start_worker(config_file, environment):
    """Starts a worker of its own; what is left of it is killed at the end."""
    started = []

    def start(hub, name):
        command = [sys.executable, "-m", "hetero_rl.cli.main", "worker", str(config_file)]
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        started.append(subprocess.Popen([*command, "--hub", hub, "--name", name], env=environment, **quiet))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def interrupted_after_a_change_of_workers(training, start_worker):
    """Lets one worker begin and another one carry on, and ends the run in order; its last step."""
    hub = training.wait_for_hub()
    first = start_worker(hub, "first")
    training.wait_for_step(5)
    with connect_fleet(hub, Config()) as fleet:
        fleet.drain_worker("first")
    assert first.wait(PATIENCE) == 0
    start_worker(hub, "late")
    training.wait_for_step(int(training.metrics()[-1]["step"]) + TWICE)
    training.process.send_signal(signal.SIGINT)
    assert training.finish() == 130, training.text()
    return int(training.metrics()[-1]["step"])


def test_adapters_are_published_alone_and_a_worker_that_joins_late_serves_them(
    train, start_worker, here, tmp_path
):
    training = train("--workers", "0", "--set", "run.steps=1000000", *ADAPTERS)
    steps = interrupted_after_a_change_of_workers(training, start_worker)

    assert [record["step"] for record in training.metrics()] == list(range(steps + 1))
    with JournalReader(training.run.journal) as reader:
        manifests = [manifest for _, manifest in reader.versions()]
        probes = reader.probes()
    assert {manifest.adapter.rank for manifest in manifests} == {4}
    assert len({manifest.adapter.base_digest for manifest in manifests}) == 1
    first, *later = manifests
    assert first.encoding is WeightEncoding.FULL_RAW
    assert all(is_adapter_name(item.name) for version in later for item in version.tensors if item.size)
    # The workers compute in float32 what the trainer does, with the same rounded numbers.
    assert {worker for worker, *_ in probes} == {"first", "late"}
    assert min(version for worker, _, version, *_ in probes if worker == "late") > 1
    assert max(row[3] for row in probes) < 1e-4

    log = json.loads(here("weights", "log", training.run.root, "--json"))
    assert {version["adapter_rank"] for version in log} == {4}
    here("export", training.run.root, tmp_path / "adapters", "--adapters")
    here("audit", training.run.root)
