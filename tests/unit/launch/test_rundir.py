import stat

import pytest

from hetero_rl.files import write_whole
from hetero_rl.launch.rundir import RunDirectory


def test_a_private_file_is_written_whole_and_for_this_user_only(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("old and longer")
    file.chmod(0o644)

    write_whole(file, "new")

    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_prepare_makes_directories_that_only_this_user_may_read(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "a")

    run.prepare()

    assert stat.S_IMODE(run.root.stat().st_mode) == 0o700
    assert run.hub.is_dir()
    assert run.logs.is_dir()


def test_a_start_that_failed_leaves_no_run_behind(tmp_path):
    run = RunDirectory(tmp_path)
    run.prepare()
    write_whole(run.config, "{}")

    assert not run.used


def test_a_trainer_that_ended_before_its_first_line_leaves_no_run_behind(tmp_path):
    run = RunDirectory(tmp_path)
    run.prepare()
    run.checkpoints.mkdir()
    run.metrics.touch()

    assert not run.used


@pytest.mark.parametrize("trace", ["journal", "checkpoints", "metrics"])
def test_a_directory_counts_as_used_once_a_run_left_a_trace(tmp_path, trace):
    run = RunDirectory(tmp_path)
    run.prepare()
    getattr(run, trace).write_text("something")

    assert run.used
