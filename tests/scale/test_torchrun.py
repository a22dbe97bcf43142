"""`hetero-rl train` as torchrun starts it: hub, worker and two trainer ranks in processes of their own, over gloo."""

import json
import os
import subprocess
import sys

import pytest

from tests.tiny_run import tiny_run

pytestmark = [pytest.mark.e2e, pytest.mark.scale, pytest.mark.timeout(1800)]
TRAIN = ["-m", "hetero_rl.cli.main", "train"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "tiny.toml"
    text = tiny_run(
        run__dir=str(tmp_path / "run"),
        run__steps=2,
        model__starter__cache_dir=str(tmp_path / "cache"),
        evaluation__every=0,
        checkpoint__every=1,
        hub__missed_heartbeats=100,
        inference__start_timeout=3000,
    )
    file.write_text(text)
    return file


def python(*arguments):
    """Runs Python to its end; torchrun's exit code is 0 only where that of every rank is."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=False,
        timeout=800,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_two_ranks_train_and_one_goes_on_with_their_checkpoint(settings, tmp_path):
    run = tmp_path / "run"

    assert "Run complete: 2 of 2 steps" in python(*TORCHRUN, *TRAIN, settings)
    assert (run / "checkpoints" / "step_00000002" / "model.safetensors").is_file()

    assert "Run complete: 3 of 3 steps" in python(*TRAIN, settings, "--resume", "--set", "run.steps=3")

    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record] == [1, 2, 3]
    assert all(record["lag/max"] <= 2 for record in records if "lag/max" in record)
