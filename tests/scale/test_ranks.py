"""The same three steps on 1, 2 and 4 ranks over gloo give the same numbers, weights, checkpoint and snapshot."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hetero_rl.trainer.shards import StoredTensors

SCRIPT = Path(__file__).with_name("ranks_step.py")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def model(script, tmp_path_factory):
    from hetero_rl.bench.trainer import save_model

    directory = tmp_path_factory.mktemp("model")
    save_model(script["SHAPES"], directory)
    return directory


def on_ranks(count, model, out, name, *options):
    out.mkdir()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(model), str(out), name, *map(str, options)],
        check=True,
        timeout=800,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    return json.loads((out / "found.json").read_text())


def alone(script, model, out, name, *options):
    out.mkdir()
    threads = torch.get_num_threads()
    script["main"](model, out, name, *options)
    torch.set_num_threads(threads)
    return json.loads((out / "found.json").read_text())


def stored(directory, kind):
    with StoredTensors(directory, kind) as files:
        return {name: files.whole(name) for name in files.names}


def assert_same(found, expected, first, second, kinds=("model", "optimizer")):
    # Estimators that scale rewards train the poisoned batch; all ranks must agree on it.
    assert found["refused"] == expected["refused"]
    for one, other in zip(found["steps"], expected["steps"], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    assert found["tensors"] == expected["tensors"]
    assert found["scores"] == pytest.approx(expected["scores"], abs=1e-4)
    for kind in kinds:
        own, theirs = stored(first, kind), stored(second, kind)
        assert own.keys() == theirs.keys()
        for name, tensor in own.items():
            torch.testing.assert_close(tensor, theirs[name], atol=2e-5, rtol=1e-3)


def test_two_ranks_do_what_one_does(script, model, tmp_path):
    expected = alone(script, model, tmp_path / "1", "vespo")

    found = on_ranks(2, model, tmp_path / "2", "vespo")

    assert found["refused"]
    assert_same(found, expected, tmp_path / "2", tmp_path / "1")


def test_sharded_checkpoints_go_from_two_ranks_to_one_and_from_one_to_two(script, model, tmp_path):
    on_ranks(2, model, tmp_path / "by 2", "vespo", "", "sharded")
    alone(script, model, tmp_path / "by 1", "vespo", "", "sharded")

    on_one = alone(script, model, tmp_path / "2 to 1", "vespo", tmp_path / "by 2")
    on_two = on_ranks(2, model, tmp_path / "1 to 2", "vespo", tmp_path / "by 1")

    assert len(list((tmp_path / "by 2").glob("model.rank-*-of-00002.safetensors"))) == 2
    assert_same(on_two, on_one, tmp_path / "1 to 2", tmp_path / "2 to 1")


@pytest.mark.scale
def test_sharded_checkpoints_go_from_four_ranks_to_two(script, model, tmp_path):
    on_ranks(4, model, tmp_path / "by 4", "vespo", "", "sharded")
    expected = alone(script, model, tmp_path / "on 1", "vespo", tmp_path / "by 4")

    found = on_ranks(2, model, tmp_path / "on 2", "vespo", tmp_path / "by 4", "sharded")

    assert_same(found, expected, tmp_path / "on 2", tmp_path / "on 1")


@pytest.mark.scale
@pytest.mark.parametrize("publish", ["merged", "adapter"])
def test_adapters_on_two_ranks_are_those_of_one(script, model, tmp_path, publish):
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    expected = alone(script, model, tmp_path / "1", "vespo", "", "whole", "2", publish)

    found = on_ranks(2, model, tmp_path / "2", "vespo", "", "whole", "2", publish)

    kinds = ("model", "optimizer", "adapter_model")
    assert_same(found, expected, tmp_path / "2", tmp_path / "1", kinds)


@pytest.mark.scale
@pytest.mark.parametrize("name", ["gepo", "grpo", "snis"])
def test_four_ranks_do_what_one_does_also_without_work_for_each(script, model, tmp_path, name):
    expected = alone(script, model, tmp_path / "1", name)

    found = on_ranks(4, model, tmp_path / "4", name)

    assert_same(found, expected, tmp_path / "4", tmp_path / "1")


@pytest.mark.scale
def test_a_checkpoint_is_continued_by_another_number_of_ranks(script, model, tmp_path):
    on_ranks(2, model, tmp_path / "2", "vespo")
    expected = alone(script, model, tmp_path / "on 1", "vespo", tmp_path / "2")

    found = on_ranks(4, model, tmp_path / "on 4", "vespo", tmp_path / "2")

    assert_same(found, expected, tmp_path / "on 4", tmp_path / "on 1")
