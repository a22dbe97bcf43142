import random

import pytest
import torch

from hetero_rl.config.tree import OptimizerConfig
from hetero_rl.errors import DamagedError, ProtocolError
from hetero_rl.trainer.policy import load_policy
from hetero_rl.trainer.state import (
    ConsumedGroups,
    capture_random_states,
    capture_tensors,
    restore_random_states,
    restore_tensors,
)
from hetero_rl.trainer.step import make_optimizer
from hetero_rl.trainer.tensor_files import write_tensors


def step(policy, optimizer):
    ids = torch.tensor([[2, 3, 4, 5]])
    loss = policy.model(input_ids=ids).logits.log_softmax(-1)[0, :, 3].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_model_and_optimizer_continue_bit_for_bit(model_dir, tmp_path):
    config = OptimizerConfig(learning_rate=1e-2)

    def fresh():
        policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
        return policy, make_optimizer(policy, config)

    first, optimizer = fresh()
    for _ in range(2):
        step(first, optimizer)
    for name, content in capture_tensors(first, optimizer).items():
        write_tensors(tmp_path / name, content)
    expected = [step(first, optimizer) for _ in range(3)]

    second, optimizer = fresh()
    restore_tensors(tmp_path, second, optimizer)

    assert [step(second, optimizer) for _ in range(3)] == expected


def test_tied_weights_are_written_once_and_stay_tied(policy, tmp_path):
    optimizer = make_optimizer(policy, OptimizerConfig())
    captured = capture_tensors(policy, optimizer)

    assert "model.embed_tokens.weight" in captured["model.safetensors"]
    assert "lm_head.weight" not in captured["model.safetensors"]
    for name, content in captured.items():
        write_tensors(tmp_path / name, content)
    restore_tensors(tmp_path, policy, optimizer)
    assert policy.model.lm_head.weight is policy.model.model.embed_tokens.weight


def test_a_checkpoint_directory_is_a_model_directory(policy, model_dir, tmp_path):
    import shutil

    optimizer = make_optimizer(policy, OptimizerConfig())
    step(policy, optimizer)
    write_tensors(tmp_path / "model.safetensors", capture_tensors(policy, optimizer)["model.safetensors"])
    shutil.copy(model_dir / "config.json", tmp_path)

    loaded = load_policy(tmp_path, device=torch.device("cpu"), compute_dtype=torch.float32)

    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded.model(input_ids=ids).logits, policy.model(input_ids=ids).logits)


def test_tensors_of_another_model_are_refused(policy, tmp_path):
    optimizer = make_optimizer(policy, OptimizerConfig())
    content = capture_tensors(policy, optimizer)
    content["model.safetensors"].pop("model.norm.weight")
    for name, tensors in content.items():
        write_tensors(tmp_path / name, tensors)

    with pytest.raises(DamagedError, match=r"model\.norm\.weight"):
        restore_tensors(tmp_path, policy, optimizer)


def test_random_generators_continue_where_they_were():
    import json

    states = json.loads(json.dumps(capture_random_states()))
    expected = (random.random(), torch.rand(3).tolist())  # ruff: ignore[suspicious-non-cryptographic-random-usage] - the generator under test
    restore_random_states(states)

    assert (random.random(), torch.rand(3).tolist()) == expected  # ruff: ignore[suspicious-non-cryptographic-random-usage] - the generator under test


def test_consumed_groups_are_kept_as_ranges_by_step():
    consumed = ConsumedGroups()
    consumed.claim(1, [3, 0, 1])
    consumed.claim(2, [2, 4, 5])
    consumed.commit(1)

    assert consumed.ranges == {1: ((0, 1), (3, 3))}
    consumed.commit(2)
    assert consumed.ranges == {1: ((0, 1), (3, 3)), 2: ((2, 2), (4, 5))}


def test_a_group_is_claimed_once():
    consumed = ConsumedGroups({1: ((0, 3),)})

    with pytest.raises(ProtocolError, match=r"\[2\] again for step 2"):
        consumed.claim(2, [2, 7])
    consumed.claim(2, [7, 8])
    with pytest.raises(ProtocolError, match=r"\[8\] again for step 3"):
        consumed.claim(3, [8])


def test_a_batch_that_names_a_group_twice_is_refused():
    with pytest.raises(ProtocolError):
        ConsumedGroups().claim(1, [4, 4])
