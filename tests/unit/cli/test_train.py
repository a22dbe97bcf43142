import socket

import pytest

from hetero_rl.config import load_config, show_config
from hetero_rl.files import write_whole
from hetero_rl.launch.rundir import RunDirectory


@pytest.fixture
def dry(cli, tmp_path):
    """Runs `hetero-rl train --dry-run` in an unused run directory."""
    return lambda *arguments: cli("train", "--dry-run", "--set", f"run.dir={tmp_path / 'run'}", *arguments)


def test_a_dry_run_says_what_would_be_started_and_prints_the_resolved_settings(dry, tmp_path):
    result = dry("--set", "run.steps=7")

    config = load_config(overrides=[f"run.dir={tmp_path / 'run'}", "run.steps=7"])
    assert result.exit_code == 0
    assert result.stdout == (
        f"# would use {tmp_path / 'run'}, start a hub on 127.0.0.1:0, start workers cpu-0\n{show_config(config)}"
    )
    assert not (tmp_path / "run").exists()


def test_short_options_stand_for_settings_and_win(dry):
    result = dry(
        "--workers", "2", "--infer-backend", "cpu", "--hub", "hub.example:1", "--set", "inference.workers=5"
    )

    assert "hub at hub.example:1, start workers cpu-0, cpu-1" in result.stdout


def test_without_local_workers_remote_ones_are_waited_for_and_may_be_of_any_backend(dry):
    result = dry("--workers", "0", "--infer-backend", "ascend,rocm")

    assert "wait for remote workers" in result.stdout
    assert 'backends = ["ascend", "rocm"]' in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--infer-backend", "nonesuch"], "no installed backend is called 'nonesuch'; installed: "),
        (["--set", "model.path=/nowhere"], "model.path = '/nowhere': no such directory"),
        (["--set", "staleness.max_lag=-1"], "staleness.max_lag = -1: "),
        (["--set", "estimator.name=vespa"], "'vespo'"),
        (["--set", "task.dataset=chain_sun"], "'chain_sum'"),
        (["--hub", "nonsense"], "hub.address = 'nonsense': give host:port"),
        (["--resume"], "holds no run to continue"),
        (["nowhere.toml"], "nowhere.toml: no such configuration file"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(dry, tmp_path, arguments, message):
    result = dry(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_refused_before_anything_is_started(dry):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        result = dry("--set", f"hub.listen=127.0.0.1:{taken.getsockname()[1]}")

    assert result.exit_code == 2
    assert "Address already in use" in result.stderr


def test_a_used_run_directory_is_refused_with_both_ways_out(dry, tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.prepare()
    write_whole(run.config, load_config(overrides=[f"run.dir={run.root}"]).model_dump_json())
    run.journal.touch()

    result = dry()

    assert result.exit_code == 2
    assert "--resume" in result.stderr
    assert "run.dir=DIRECTORY" in result.stderr
