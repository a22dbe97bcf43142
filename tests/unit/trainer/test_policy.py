import json
import shutil

import pytest
import torch

from hetero_rl.errors import ConfigError
from hetero_rl.trainer.model import open_model, stop_tokens
from hetero_rl.trainer.policy import choose_device, load_policy
from hetero_rl.trainer.snapshots import SnapshotScorer, take_snapshot


def load(directory):
    return load_policy(directory, device=torch.device("cpu"), compute_dtype=torch.float32)


@pytest.fixture
def copied(model_dir, tmp_path):
    return shutil.copytree(model_dir, tmp_path / "copied")


def test_master_weights_are_float32_and_dropout_is_off(policy):
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
    assert not policy.model.training
    assert policy.vocabulary_size == 12


def test_a_directory_without_configuration_is_refused(copied):
    (copied / "config.json").unlink()

    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(copied)


def test_pickled_weights_are_not_read(copied):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")

    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        load(copied)


def test_code_that_comes_with_a_model_is_not_run(copied):
    config = json.loads((copied / "config.json").read_text())
    config["model_type"] = "mine"
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "evil.py").write_text("raise SystemExit('code of the model ran')")

    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(copied)


def test_an_unknown_device_is_refused():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"trainer\.device is 'abacus'"):
        choose_device("abacus")


def test_the_starter_model_is_made_when_the_path_asks_for_it(make_config, model_dir, monkeypatch):
    config = make_config(model={"path": "starter"})
    monkeypatch.setattr(
        "hetero_rl.starter.ensure_starter", lambda asked: model_dir if asked == config else None
    )

    assert open_model(config).directory == model_dir


def test_stop_tokens_are_those_of_every_place_that_names_one(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 3]}')

    assert stop_tokens(tmp_path, 5) == (3, 5, 7)


def test_a_model_without_an_end_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ConfigError, match="names no end-of-sequence token"):
        stop_tokens(tmp_path, None)


def test_a_snapshot_does_not_follow_the_policy(policy):
    snapshot = take_snapshot(policy, 1, torch.float32)
    before = snapshot.tensors["model.norm.weight"].clone()

    with torch.no_grad():
        policy.model.model.norm.weight.add_(1)

    assert torch.equal(snapshot.tensors["model.norm.weight"], before)
    assert snapshot.tensors["lm_head.weight"] is snapshot.tensors["model.embed_tokens.weight"]


def test_a_snapshot_is_scored_with_its_rounded_numbers_and_leaves_the_policy_alone(policy):
    snapshot = take_snapshot(policy, 1, torch.bfloat16)
    scorer = SnapshotScorer(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    trained = [parameter.clone() for parameter in policy.parameters()]

    found = scorer.score(snapshot, [[1, 2, 3], [4, 5]])

    for parameter, value in zip(policy.parameters(), trained, strict=True):
        assert torch.equal(parameter, value)
    with torch.no_grad():
        for name, parameter in policy.named_parameters().items():
            parameter.copy_(snapshot.tensors[name].float())
        first = policy.model(input_ids=torch.tensor([[1, 2, 3]])).logits.log_softmax(-1)[0]
        second = policy.model(input_ids=torch.tensor([[4, 5]])).logits.log_softmax(-1)[0]
    expected = [first[0, 2], first[1, 3], second[0, 5]]
    assert found == pytest.approx([float(value) for value in expected], abs=1e-5)
