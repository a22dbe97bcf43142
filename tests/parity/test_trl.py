"""Gradients against TRL's own GRPO trainer, its loss called with a stand-in for the trainer."""

import collections
import types

import pytest
import torch
from trl import GRPOTrainer

TOLERANCE = {"rtol": 0, "atol": 1e-7}


def gradient(case, *, weights=None, **settings):
    """TRL's gradient with respect to the log-probabilities of the completion."""
    leaf = case.log_probs.clone().requires_grad_()
    constants = {
        "delta": None,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "steps_per_generation": 1,
        "use_bias_correction_kl": True,
    }
    constants |= {key: settings.pop(key) for key in list(settings) if key in constants}
    trainer = types.SimpleNamespace(
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        max_completion_length=case.mask.shape[1],
        _entropy_bonus_enabled=False,
        model=types.SimpleNamespace(training=True),
        accelerator=types.SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        args=types.SimpleNamespace(**constants),
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (leaf, torch.zeros_like(leaf), None),
    )
    vars(trainer).update(settings)
    ids = torch.zeros_like(case.mask, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": case.mask,
        "advantages": case.advantages,
        "old_per_token_logps": case.old_log_probs,
        "num_items_in_batch": case.mask.sum(),
    }
    if weights is not None:
        inputs["importance_sampling_ratio"] = weights
    GRPOTrainer._compute_loss(trainer, None, inputs).backward()
    return leaf.grad


OLD = {"anchor": "old"}
SAME = [
    ("grpo", OLD, {"loss_type": "grpo"}),
    ("grpo", OLD | {"clip_ratio_c": 1.5}, {"loss_type": "grpo", "delta": 1.5}),
    ("dapo", OLD, {"loss_type": "dapo", "epsilon_high": 0.28}),
    ("ppo", OLD, {"loss_type": "bnpo"}),
    ("dr_grpo", OLD, {"loss_type": "dr_grpo"}),
    ("cispo", OLD, {"loss_type": "cispo", "epsilon_high": 5.0}),
    ("cispo", OLD | {"ratio_high": 1.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    ("sapo", OLD, {"loss_type": "sapo"}),
    (
        "gspo",
        OLD | {"epsilon_low": 0.03, "epsilon_high": 0.04},
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 0.03,
            "epsilon_high": 0.04,
        },
    ),
    (
        "gspo",
        OLD | {"epsilon_low": 0.03, "epsilon_high": 0.04, "aggregation": "sequence_mean_token_sum"},
        {
            "loss_type": "luspo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 0.03,
            "epsilon_high": 0.04,
        },
    ),
    ("opsm", OLD | {"delta": 0.05}, {"loss_type": "grpo", "off_policy_mask_threshold": 0.05}),
]


@pytest.mark.parametrize(("name", "options", "settings"), SAME)
def test_the_gradient_is_that_of_trl(case, name, options, settings):
    torch.testing.assert_close(case.gradient(name, **options), gradient(case, **settings), **TOLERANCE)


def test_vespo_is_that_of_trl_where_old_is_the_sampler(case):
    ours = case.gradient("vespo", old_is_behavior=True)
    torch.testing.assert_close(ours, gradient(case, loss_type="vespo"), **TOLERANCE)


def test_vespo_is_that_of_trl_where_the_engine_ratio_enters_its_product(case):
    weights = torch.where(case.mask > 0, (case.old_log_probs - case.behavior_log_probs).exp(), 1.0)
    ours = case.gradient("vespo")
    torch.testing.assert_close(ours, gradient(case, loss_type="vespo", weights=weights), **TOLERANCE)


def test_the_vespo_of_trl_reads_the_engine_ratio_of_padding_and_ours_has_no_padding(case):
    weights = (case.old_log_probs - case.behavior_log_probs).exp()
    theirs = gradient(case, loss_type="vespo", weights=weights)
    assert not torch.allclose(case.gradient("vespo"), theirs, rtol=0, atol=1e-7)


def test_token_truncated_importance_sampling_is_that_of_trl(case):
    weights = (case.old_log_probs - case.behavior_log_probs).exp().clamp(max=1.05)
    ours = case.gradient("tis", parts="split", threshold=1.05)
    torch.testing.assert_close(ours, gradient(case, loss_type="dapo", weights=weights), **TOLERANCE)


def test_sequence_truncated_importance_sampling_of_trl_is_the_product(case):
    product = ((case.old_log_probs - case.behavior_log_probs) * case.mask).sum(1, keepdim=True).exp()
    ours = case.gradient("tis", parts="split", level="sequence", threshold=1.05)
    theirs = gradient(case, loss_type="dapo", weights=product.clamp(max=1.05).expand_as(case.mask))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_decoupled_ppo_is_grpo_of_trl_times_the_raw_engine_ratio(case):
    weights = (case.old_log_probs - case.behavior_log_probs).exp()
    ours = case.gradient("decoupled_ppo")
    torch.testing.assert_close(ours, gradient(case, loss_type="dapo", weights=weights), **TOLERANCE)
