"""Workers leave a running job and join it: the run waits for data, says so, and goes on."""

import subprocess
import sys

from hetero_rl.config import Config
from hetero_rl.launch.hub_access import connect_fleet
from hetero_rl.observe.fleet import fetch_fleet
from hetero_rl.observe.scaling import ScaleHint, scale_hint

COMMAND = [sys.executable, "-m", "hetero_rl.cli.main", "worker"]
PATIENCE = 600.0


def test_a_drained_worker_leaves_and_one_that_joins_later_carries_the_run_on(
    train, config_file, environment, here
):
    training = train("--workers", "0", "--set", "run.steps=16", "--set", "evaluation.every=0")
    hub = training.wait_for_hub()

    def worker(name):
        arguments = [str(config_file), "--hub", hub, "--name", name]
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    first = worker("first")
    try:
        with connect_fleet(hub, Config()) as fleet:
            while not fleet.list_workers(include_gone=False):
                training._tick()
            said = here("workers", "drain", "first", "--hub", hub)
            left = first.wait(PATIENCE)
            without = fetch_fleet(fleet, include_gone=True)
        made_before = len(training.metrics())
        second = worker("second")
        end, joined = training.finish(), second.wait(PATIENCE)
    finally:
        first.kill()
        first.wait()

    assert "first drains" in said
    assert (left, joined, end) == (0, 0, 0), training.text()
    assert scale_hint(without.status, without.workers) is ScaleHint.NO_WORKER
    assert made_before < 17 == len(training.metrics())
