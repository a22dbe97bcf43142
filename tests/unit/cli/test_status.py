import contextlib
import json
from types import SimpleNamespace

import pytest

from hetero_rl.config import load_config
from hetero_rl.errors import UnreachableError
from hetero_rl.files import write_whole
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.wire.messages import QueueCounts, RunStatus


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory with settings, below the working directory's ./runs."""
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(tmp_path / "runs" / "a")
    run.prepare()
    write_whole(run.config, load_config(overrides=[f"run.dir={run.root}", "run.steps=20"]).model_dump_json())
    return run


@pytest.fixture
def hub(monkeypatch):
    """A hub that answers; `addresses` holds whom the command called."""
    hub = SimpleNamespace(
        addresses=[],
        run_status=lambda: RunStatus(
            run=None,
            step=3,
            total_steps=20,
            training=QueueCounts(),
            evaluation=QueueCounts(),
            counters={},
            trainer_connected=False,
            uptime=5.0,
            groups_per_step=4,
            max_lag=2,
        ),
        list_workers=lambda *, include_gone: (),
        list_events=lambda after_sequence, limit=0: (),
    )

    @contextlib.contextmanager
    def connect(address, config):
        hub.addresses.append(address)
        yield hub

    monkeypatch.setattr("hetero_rl.cli.status.connect_fleet", connect)
    return hub


def test_the_hub_of_a_run_is_found_by_the_address_it_wrote(cli, run, hub):
    run.hub_address.write_text("127.0.0.1:4242\n")

    result = cli("status", "--run", run.root)

    assert (result.exit_code, hub.addresses) == (0, ["127.0.0.1:4242"])
    assert "no trainer has opened a run yet" in result.stdout


def test_the_newest_run_is_taken_when_none_is_named(cli, run, hub):
    run.hub_address.write_text("127.0.0.1:4242")

    assert cli("status").exit_code == 0
    assert hub.addresses == ["127.0.0.1:4242"]


def test_a_hub_is_called_by_address(cli, hub):
    result = cli("status", "--hub", "hub.example:1", "--json")

    assert hub.addresses == ["hub.example:1"]
    assert json.loads(result.stdout)["step"] == 3


def test_a_run_without_a_hub_says_how_far_it_came_and_how_it_goes_on(cli, run):
    run.metrics.write_text(
        '{"step": 0, "eval/accuracy": 0.25}\n{"step": 7, "reward/mean": 0.5}\n{"step": 8, "rew'
    )
    (run.checkpoints / "step_00000005").mkdir(parents=True)

    result = cli("status", "--run", run.root)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{run.root}: no hub is running; 7 of 20 steps were made",
        "last held-out accuracy 0.250",
        f"continue from step 5 with: hetero-rl train {run.config} --resume",
    ]


def test_a_run_without_a_hub_is_json_on_request(cli, run):
    result = cli("status", "--run", run.root, "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "running": False,
        "step": 0,
        "total_steps": 20,
        "checkpoint_step": None,
        "reward": None,
        "eval_accuracy": None,
    }


def test_a_hub_that_was_named_and_does_not_answer_is_an_error(cli, hub, monkeypatch):
    def away():
        raise UnreachableError("nobody at hub.example:1")

    hub.run_status = away

    result = cli("status", "--hub", "hub.example:1")

    assert (result.exit_code, result.stderr) == (1, "Error: nobody at hub.example:1\n")


def test_a_directory_without_a_run_is_an_error_of_use(cli, tmp_path):
    result = cli("status", "--run", tmp_path)

    assert (result.exit_code, result.stderr) == (
        2,
        f"Error: {tmp_path}: holds no run; give the directory that run.dir named\n",
    )


def test_no_run_at_all_is_an_error_of_use(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert cli("status").exit_code == 2
