"""Mixture-of-experts weights under the names of a checkpoint and under those of the module."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from hetero_rl.errors import InvalidMessageError
from hetero_rl.worker.engines.transformers.experts import ExpertJoiner
from hetero_rl.worker.engines.transformers.model import WeightTable

SHAPES = {
    "l.mlp.experts.gate_up_proj": torch.Size((2, 4, 3)),
    "l.mlp.experts.down_proj": torch.Size((2, 3, 2)),
    "norm.weight": torch.Size((3,)),
}


def expert(number, kind, value, rows=2, columns=3):
    return f"l.mlp.experts.{number}.{kind}.weight", torch.full((rows, columns), float(value))


def test_gate_lies_above_up_and_experts_follow_their_numbers_in_any_order():
    given = [
        expert(1, "up_proj", 4),
        ("norm.weight", torch.ones(3)),
        expert(0, "gate_proj", 1),
        expert(1, "gate_proj", 3),
        expert(0, "up_proj", 2),
    ]

    joined = dict(ExpertJoiner(SHAPES).joined(given))

    assert list(joined) == ["norm.weight", "l.mlp.experts.gate_up_proj"]
    assert joined["l.mlp.experts.gate_up_proj"][:, :, 0].tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


def test_names_that_the_model_has_itself_pass():
    given = [
        ("l.mlp.experts.down_proj", torch.zeros(2, 3, 2)),
        ("unknown.experts.0.up_proj.weight", torch.zeros(1)),
    ]

    assert [name for name, _ in ExpertJoiner(SHAPES).joined(given)] == [name for name, _ in given]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([expert(0, "up_proj", 1)], "3 parts of 'l.mlp.experts.gate_up_proj' are missing, such as expert 0"),
        ([expert(2, "up_proj", 1)], "beyond the model's 2 experts"),
        ([expert(0, "up_proj", 1), expert(0, "up_proj", 1)], "given twice"),
        ([expert(0, "up_proj", 1, rows=3)], r"shape \[3, 3\], the model needs \[2, 3\]"),
    ],
)
def test_what_does_not_fit_is_refused(given, complaint):
    with pytest.raises(InvalidMessageError, match=complaint):
        list(ExpertJoiner(SHAPES).joined(given))


def test_a_checkpoint_and_the_module_it_came_from_are_the_same_weights(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    source, target = Qwen3MoeForCausalLM(config), Qwen3MoeForCausalLM(config)
    source.save_pretrained(tmp_path)
    checkpoint = load_file(tmp_path / "model.safetensors")
    assert any(".experts.3.gate_proj." in name for name in checkpoint), "one tensor for each expert"
    table = WeightTable(target)

    table.replace(table.new_weights(checkpoint.items()))

    wanted = source.state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in target.state_dict().items())
