"""A worker that gets its weights from a relay, as processes."""

import re
import subprocess
import sys
import time

import pytest


@pytest.fixture
def relay(tmp_path, environment):
    """Starts `hetero-rl relay` for a hub and returns its address."""
    started = []

    def start(hub):
        output = tmp_path / "relay.txt"
        command = [
            sys.executable,
            "-m",
            "hetero_rl.cli.main",
            "relay",
            "--hub",
            hub,
            "--listen",
            "127.0.0.1:0",
        ]
        with output.open("wb") as file:
            started.append(
                subprocess.Popen(
                    [*command, "--cache-dir", str(tmp_path / "relay")], stderr=file, env=environment
                )
            )
        deadline = time.monotonic() + 90
        while not (found := re.search(r"listens on (\S+)", output.read_text(encoding="utf-8"))):
            assert started[0].poll() is None, output.read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found[1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.timeout(480)
def test_a_worker_behind_a_relay_carries_the_run(train, relay, hetero_rl, config_file, tmp_path):
    training = train("--workers", "0")
    hub = training.wait_for_hub()

    worker = hetero_rl(
        "worker", config_file, "--hub", hub, "--relay", relay(hub), "--name", "behind", timeout=420
    )

    assert worker.returncode == 0, worker.stderr
    assert training.finish() == 0, training.text()
    assert [record["step"] for record in training.metrics()] == list(range(7))
    # The model's files and the first version at least; near its end the hub may be gone before the worker has left.
    assert sum(path.is_file() for path in (tmp_path / "relay").iterdir()) >= 3
