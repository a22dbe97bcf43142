import dataclasses

import pytest
import torch

from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.sharing import can_share_prompts


def policy_of(model):
    return Policy(model=model.eval(), device=torch.device("cpu"), compute_dtype=torch.float32)


def test_a_model_with_full_attention_shares_prompts(policy):
    assert can_share_prompts(policy)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_attention_implementations_read_the_mask(model_dir, attention):
    from hetero_rl.trainer.policy import load_policy

    loaded = load_policy(
        model_dir, device=torch.device("cpu"), compute_dtype=torch.bfloat16, attention=attention
    )

    assert can_share_prompts(loaded)


def test_a_sliding_window_does_not(policy):
    policy.model.config.layer_types = ["full_attention", "sliding_attention"]

    assert not can_share_prompts(policy)


def test_a_model_that_ignores_the_mask_does_not(policy):
    class Deaf(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config

        def get_input_embeddings(self):
            return self.inner.get_input_embeddings()

        def forward(self, attention_mask=None, **inputs):
            return self.inner(**inputs)

    assert not can_share_prompts(dataclasses.replace(policy, model=Deaf(policy.model), head=None))


def test_a_model_that_refuses_the_mask_does_not(policy):
    class Strict:
        config = policy.model.config
        get_input_embeddings = policy.model.get_input_embeddings

        def __call__(self, *, input_ids, use_cache, logits_to_keep):
            raise AssertionError("the shared layout is tried first and passes more")

    assert not can_share_prompts(dataclasses.replace(policy, model=Strict(), head=None))


def test_a_recurrent_model_does_not():
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=12, hidden_size=16, state_size=4, num_hidden_layers=1, use_cache=False)

    assert not can_share_prompts(policy_of(MambaForCausalLM(config)))
