"""Gradients against verl's registry of policy losses and its rollout correction, and where the two frameworks differ."""

import math

import pytest
import torch
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.workers.config import ActorConfig, PolicyLossConfig

from hetero_rl.estimators.stages.advantages import advantages
from hetero_rl.estimators.stages.groups import Groups

TOLERANCE = {"rtol": 0, "atol": 1e-7}

SEQUENCE_MEAN = "seq-mean-token-mean"


def gradient(case, loss, *, aggregation="token-mean", weights=None, mask=None, **settings):
    """Gradient of verl with respect to the log-probabilities."""
    leaf = case.log_probs.clone().requires_grad_()
    config = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **settings)
    mask = case.mask if mask is None else mask
    value, _ = core_algos.get_policy_loss_fn(loss)(
        old_log_prob=case.old_log_probs,
        log_prob=leaf,
        advantages=case.advantages[:, None].expand_as(mask),
        response_mask=mask,
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights,
    )
    value.backward()
    return leaf.grad


def chip_log_ratio(case):
    return case.old_log_probs - case.behavior_log_probs


OLD = {"anchor": "old"}
SAME = [
    ("ppo", OLD | {"clip_ratio_c": 3.0}, "vanilla", {}),
    ("ppo", OLD | {"clip_ratio_c": 1.2}, "vanilla", {"clip_ratio_c": 1.2}),
    (
        "gspo",
        OLD | {"epsilon_low": 0.03, "epsilon_high": 0.04},
        "gspo",
        {"aggregation": SEQUENCE_MEAN, "clip_ratio_low": 0.03, "clip_ratio_high": 0.04},
    ),
    ("sapo", OLD, "sapo", {}),
    ("cispo", OLD | {"ratio_low": 0.8, "ratio_high": 1.2}, "cispo", {}),
    ("gmpo", OLD | {"epsilon_low": 0.2, "epsilon_high": 0.2}, "geo_mean", {}),
    ("reinforce", {}, "gpg", {}),
]


@pytest.mark.parametrize(("name", "options", "loss", "settings"), SAME)
def test_the_gradient_is_that_of_verl(case, name, options, loss, settings):
    torch.testing.assert_close(case.gradient(name, **options), gradient(case, loss, **settings), **TOLERANCE)


@pytest.mark.parametrize(("name", "delta"), [("dppo_tv", 0.02), ("dppo_kl", 0.005)])
def test_dppo_is_that_of_verl_where_old_is_the_sampler(case, name, delta):
    ours = case.gradient(name, old_is_behavior=True, delta=delta, clip_ratio_c=1.3)
    theirs = gradient(
        case, name, clip_ratio=delta, clip_ratio_low=delta, clip_ratio_high=delta, clip_ratio_c=1.3
    )
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_the_documented_dppo_cap_of_verl_never_applies(case):
    """verl reads a cap of 20 unless the actor's config has one, and the actor's config always has 3."""
    far = type(case)(
        mask=case.mask,
        log_probs=(case.old_log_probs + math.log(6)).clamp(max=-1e-3),
        old_log_probs=case.old_log_probs - 3,
        behavior_log_probs=case.behavior_log_probs,
        advantages=-case.advantages.abs(),
    )
    theirs = gradient(far, "dppo_tv")
    capped = far.gradient("dppo_tv", old_is_behavior=True, clip_ratio_c=3.0)
    torch.testing.assert_close(capped, theirs, **TOLERANCE)
    documented = far.gradient("dppo_tv", old_is_behavior=True, clip_ratio_c=20.0)
    assert not torch.allclose(documented, theirs, rtol=0, atol=1e-7)


def test_verl_clips_bad_tokens_twice_by_default_and_trl_does_not(case):
    far = type(case)(
        mask=case.mask,
        log_probs=case.log_probs,
        old_log_probs=case.log_probs - 2.0,
        behavior_log_probs=case.behavior_log_probs,
        advantages=-case.advantages.abs(),
    )
    theirs = gradient(far, "vanilla")
    assert theirs.count_nonzero() == 0
    assert far.gradient("ppo", anchor="old").count_nonzero() > 0
    without = gradient(far, "vanilla", clip_ratio_c=1e6)
    torch.testing.assert_close(far.gradient("ppo", anchor="old"), without, **TOLERANCE)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_sampling_is_that_of_verl(case, level):
    weights, _ = compute_rollout_correction_weights(
        chip_log_ratio(case), case.mask, rollout_is=level, rollout_is_threshold=1.05
    )
    ours = case.gradient("tis", parts="split", level=level, threshold=1.05)
    theirs = gradient(case, "vanilla", weights=weights, clip_ratio_c=1e6)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_batch_normalised_weights_are_those_of_verl(case, level):
    weights, _ = compute_rollout_correction_weights(
        chip_log_ratio(case),
        case.mask,
        rollout_is=level,
        rollout_is_threshold=1.05,
        rollout_is_batch_normalize=True,
    )
    ours = case.gradient("tis", parts="split", level=level, threshold=1.05, normalise="batch")
    theirs = gradient(case, "vanilla", weights=weights, clip_ratio_c=1e6)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_icepop_is_that_of_verl(case):
    weights, _ = compute_rollout_correction_weights(
        chip_log_ratio(case), case.mask, rollout_is="token", rollout_is_threshold="0.95_1.1"
    )
    ours = case.gradient("icepop", parts="split", ratio_low=0.95, ratio_high=1.1)
    theirs = gradient(case, "vanilla", weights=weights, clip_ratio_c=1e6)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_trust_region_masking_keeps_the_sequences_that_verl_keeps(case):
    log_ratio = case.log_probs - case.behavior_log_probs
    kept, _ = compute_rollout_rejection_mask(
        log_ratio, case.mask, rollout_rs="seq_max_k3", rollout_rs_threshold="0.1"
    )
    ours = case.gradient("trm", delta=0.1) != 0
    torch.testing.assert_close(ours, kept.bool())


def test_the_k1_window_of_verl_acts_on_the_inverse_ratio_and_ours_on_the_ratio(case):
    """verl compares -log(pi/mu) with the logs of its bounds, so bounds of 0.5 and 10 reject a ratio of 3."""
    del case
    log_ratio = torch.tensor([[math.log(3.0), math.log(0.4)]], dtype=torch.float64)
    kept, _ = compute_rollout_rejection_mask(
        log_ratio, torch.ones(1, 2), rollout_rs="token_k1", rollout_rs_threshold="0.5_10"
    )
    assert kept.tolist() == [[0.0, 1.0]]
    weights, _ = compute_rollout_correction_weights(
        log_ratio, torch.ones(1, 2), rollout_is="token", rollout_is_threshold="0.5_10"
    )
    assert (weights != 0).tolist() == [[True, False]]


def test_verl_shrinks_the_denominator_of_rejected_tokens_as_our_after_mask_does(case):
    log_ratio = case.log_probs - case.behavior_log_probs
    kept, _ = compute_rollout_rejection_mask(
        log_ratio, case.mask, rollout_rs="seq_max_k3", rollout_rs_threshold="0.1"
    )
    if not kept.any():
        pytest.skip("every sequence of this batch is rejected")
    weights = log_ratio.exp()
    theirs = gradient(case, "gpg", mask=kept)
    ours = case.gradient("trm", delta=0.1, denominator="after_mask", aggregation="token_mean")
    torch.testing.assert_close(ours, theirs * weights, **TOLERANCE)


@pytest.mark.parametrize(
    ("estimate", "kind"),
    [
        (core_algos.compute_grpo_outcome_advantage, "group_mean_std"),
        (core_algos.compute_rloo_outcome_advantage, "leave_one_out"),
    ],
)
def test_advantages_are_those_of_verl(case, estimate, kind):
    groups = torch.arange(8) // 4
    rewards = torch.zeros_like(case.mask)
    rewards[:, 0] = case.advantages
    theirs, _ = (
        estimate(token_level_rewards=rewards, response_mask=case.mask, index=groups.numpy(), epsilon=1e-6)
        if kind == "group_mean_std"
        else estimate(token_level_rewards=rewards, response_mask=case.mask, index=groups.numpy())
    )
    ours = advantages(case.advantages, Groups.of(groups), kind, 1e-6)
    torch.testing.assert_close(ours, theirs[:, 0].to(torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("correction", "name", "options"),
    [
        ({"loss_type": "ppo_clip"}, "ppo", {"clip_ratio_c": 3.0}),
        (
            {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 1.1},
            "tis",
            {"threshold": 1.1},
        ),
        (
            {"loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": 1.1},
            "tis",
            {"threshold": 1.1, "level": "sequence"},
        ),
    ],
)
def test_the_bypass_mode_of_verl_is_the_whole_ratio_to_the_sampler(case, correction, name, options):
    policy_loss = PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction)
    theirs = gradient(case, "bypass_mode", policy_loss=policy_loss)
    ours = case.gradient(name, old_is_behavior=True, **options)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
