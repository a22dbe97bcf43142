"""Workers that join from elsewhere: who is refused, and who carries the run."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from hetero_rl.config import load_config
from hetero_rl.launch.run_model import starting_model


def test_a_worker_with_another_model_is_refused_with_both_digests_and_a_right_one_carries_the_run(
    train, hetero_rl, config_file, tmp_path
):
    training = train("--workers", "0")
    hub = training.wait_for_hub()
    other = tmp_path / "other"
    shutil.copytree(starting_model(load_config([config_file])), other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 0.5}))

    wrong_model = ("--set", f"inference.worker.model_path={other}")
    refused = hetero_rl("worker", config_file, "--hub", hub, "--name", "wrong", *wrong_model)
    status = json.loads(hetero_rl("status", "--hub", hub, "--json").stdout)
    right = hetero_rl("worker", config_file, "--hub", hub, "--name", "right")

    assert refused.returncode == 2, refused.stderr
    error = refused.stderr.partition("Error: ")[2]
    assert len(set(re.findall(r"[0-9a-f]{12,64}", error))) >= 2, refused.stderr
    assert (status["run_id"], status["trainer_connected"], status["workers"]) == ("tiny", True, [])
    assert right.returncode == 0, right.stderr
    assert training.finish() == 0, training.text()
    assert [record["step"] for record in training.metrics()] == list(range(7))


def test_a_trainer_without_a_hub_at_the_given_address_says_so(hetero_rl, config_file, tmp_path):
    result = hetero_rl("train", config_file, "--set", f"run.dir={tmp_path}", "--hub", "127.0.0.1:1")

    assert result.returncode == 1
    assert "nothing listens at 127.0.0.1:1" in result.stderr


def test_an_unknown_backend_is_refused_before_anything_is_started(hetero_rl, config_file, tmp_path):
    run = tmp_path / "run"

    result = hetero_rl("train", config_file, "--set", f"run.dir={run}", "--infer-backend", "nonesuch")

    assert result.returncode == 2
    assert re.search(r"installed: .*\bcpu\b", result.stderr)
    assert not run.exists()


@pytest.fixture
def ascend_backend(environment, tmp_path, monkeypatch):
    """The Ascend backend as an installed distribution, whatever the environment of the tests has."""
    installed = tmp_path / "installed"
    record = installed / "hetero_rl_backend_ascend-0.1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: hetero-rl-backend-ascend\nVersion: 0.1.0\n"
    )
    (record / "entry_points.txt").write_text(
        "[hetero_rl.backends]\nascend = hetero_rl_backend_ascend:BACKEND\n"
    )
    code = Path(__file__).parents[2] / "backends" / "ascend"
    before = environment.get("PYTHONPATH")
    paths = [str(installed), str(code), *([before] if before else [])]
    monkeypatch.setitem(environment, "PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.timeout(600)
def test_a_run_for_a_device_that_is_not_here_says_what_to_type_elsewhere_and_waits_for_it(
    train, hetero_rl, config_file, ascend_backend
):
    training = train("--infer-backend", "ascend")
    hub = training.wait_for_hub()
    training.wait_for(training.run.remote_workers)
    command = shlex.split(training.run.remote_workers.read_text().splitlines()[-1].partition("there: ")[2])

    # The device is nowhere, so another backend stands in for it under the same name.
    arguments = ["cpu" if argument == "ascend" else argument for argument in command[1:]]
    worker = hetero_rl(*arguments, timeout=400)

    assert command[:4] == ["hetero-rl", "worker", "--hub", hub]
    assert command[4:8] == ["--infer-backend", "ascend", "--name", "ascend-0"]
    assert worker.returncode == 0, worker.stderr
    assert training.finish(120) == 0, training.text()
    assert "waiting for a worker of ascend on another machine" in training.output.read_text()
    assert [record["step"] for record in training.metrics()] == list(range(7))
