"""Weight versions on their way to vLLM's processes."""

import json
import os

import torch
from safetensors import safe_open

from hetero_rl.worker.engines.vllm.staging import Staging

TENSORS = {"b.weight": torch.arange(6.0).reshape(2, 3).T, "a.weight": torch.ones(2, dtype=torch.bfloat16)}


def test_tensors_come_back_in_the_order_in_which_they_were_given(tmp_path):
    path = Staging(tmp_path).write(TENSORS)

    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["names"]) == ["b.weight", "a.weight"]
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in TENSORS.items())


def test_nobody_else_can_read_them_and_nothing_is_left(tmp_path):
    path = Staging(tmp_path).write(TENSORS)
    assert path.parent.stat().st_mode & 0o077 == 0

    Staging.remove(path)

    assert list(tmp_path.iterdir()) == []


def test_without_room_in_memory_another_place_is_taken(tmp_path, caplog):
    path = Staging(tmp_path / "missing").write(TENSORS)

    assert path.exists()
    assert "has no room" in caplog.text
    Staging.remove(path)


def test_what_a_killed_worker_has_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path):
    dead = tmp_path / "hetero-rl-vllm-4194305-x"  # above the largest process id of Linux
    alive = tmp_path / f"hetero-rl-vllm-{os.getpid()}-x"
    dead.mkdir()
    alive.mkdir()

    Staging(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [alive.name]


def test_an_engine_on_several_nodes_gets_them_where_all_nodes_look(tmp_path):
    other_host = tmp_path / "hetero-rl-vllm-elsewhere-4194305-x"
    other_host.mkdir()

    path = Staging(shared=tmp_path).write(TENSORS)

    assert path.parent.parent == tmp_path
    assert other_host.exists()
