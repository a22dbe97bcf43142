"""Closed-form coefficients against autograd of the objective that each paper states."""

import pytest
import torch

from hetero_rl.estimators import make_estimator, surrogate_loss

DUAL = 1.5


def ratio(log_probs, recorded):
    return (log_probs - recorded.behavior_log_probs).exp()


def sequence_mean(values, recorded):
    """Mean over the tokens of each sequence, as autograd sees it."""
    return torch.stack([part.mean() for part in values.split(recorded.lengths.tolist())])


def clipped(r, advantages, low, high):
    return torch.min(r * advantages, r.clamp(1 - low, 1 + high) * advantages)


def ppo(log_probs, recorded, advantages):
    advantages = advantages[recorded.sequence_ids]
    return clipped(ratio(log_probs, recorded), advantages, 0.2, 0.2).mean()


def dual_clip(log_probs, recorded, advantages):
    advantages = advantages[recorded.sequence_ids]
    value = clipped(ratio(log_probs, recorded), advantages, 0.2, 0.2)
    return torch.where(advantages < 0, torch.max(value, DUAL * advantages), value).mean()


def gspo(log_probs, recorded, advantages):
    s = sequence_mean(log_probs - recorded.behavior_log_probs, recorded).exp()
    return clipped(s, advantages, 0.03, 0.04).mean()


def gmpo(log_probs, recorded, advantages):
    log_r = log_probs - recorded.behavior_log_probs
    sign = advantages[recorded.sequence_ids].sign()
    held = sign * torch.min(sign * log_r, sign * log_r.clamp(-0.1, 0.1))
    return (sequence_mean(held, recorded).exp() * advantages).mean()


def sapo(log_probs, recorded, advantages):
    tau = torch.where(advantages > 0, 1.0, torch.tensor(1.05, dtype=torch.float64))[recorded.sequence_ids]
    gate = 4 / tau * torch.sigmoid(tau * (ratio(log_probs, recorded) - 1))
    return (sequence_mean(gate, recorded) * advantages).mean()


def seq_is(log_probs, recorded, advantages):
    log_r = log_probs - recorded.behavior_log_probs
    weights = torch.stack([part.sum() for part in log_r.split(recorded.lengths.tolist())]).exp()
    return (weights * advantages).mean()


def luffy(log_probs, recorded, advantages):
    p = log_probs.exp()
    return (p / (p + 0.1) * advantages[recorded.sequence_ids]).mean()


def gepo(log_probs, recorded, advantages):
    p = sequence_mean(log_probs, recorded).exp()
    q = sequence_mean(recorded.behavior_log_probs, recorded).exp()
    weights = []
    for group in recorded.group_ids.unique():
        own = recorded.group_ids == group
        weights.append(p[own] / ((q[own] ** 2).sum() / q[own].sum()))
    return clipped(torch.cat(weights), advantages, 0.2, 0.2).mean()


def vespo(log_probs, recorded, advantages):
    """f(W) with f'(W) = phi(W)/W: the lower incomplete gamma function, by its series for whole c1."""
    log_r = log_probs - recorded.behavior_log_probs
    w = torch.stack([part.sum() for part in log_r.split(recorded.lengths.tolist())]).exp()
    c1, c2 = torch.where(advantages >= 0, 2, 3), torch.where(advantages >= 0, 3.0, 2.0).double()
    x = c2 * w
    partial = torch.where(c1 == 2, 1 + x, 1 + x + x**2 / 2)
    incomplete = torch.where(c1 == 2, 1, 2) * (1 - torch.exp(-x) * partial)
    return (incomplete * c2 ** (-c1.double()) * c2.exp() * advantages).sum() / log_probs.shape[0]


OBJECTIVES = [
    ("ppo", {}, ppo),
    ("ppo", {"clip_ratio_c": DUAL}, dual_clip),
    ("gspo", {"epsilon_low": 0.03, "epsilon_high": 0.04}, gspo),
    ("gmpo", {"epsilon_low": 0.1, "epsilon_high": 0.1}, gmpo),
    ("sapo", {}, sapo),
    ("seq_is", {}, seq_is),
    ("luffy", {"expert_rows": "all"}, luffy),
    ("gepo", {}, gepo),
    ("vespo", {}, vespo),
]


@pytest.mark.parametrize(("name", "options", "objective"), OBJECTIVES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gradient_is_that_of_the_stated_objective(name, options, objective, seed, make_recorded):
    recorded, log_probs = make_recorded(seed=seed, shift=0.3)
    estimator = make_estimator(name, options)
    prepared = estimator.prepare(recorded)
    ours = log_probs.clone().requires_grad_()
    surrogate_loss(prepared, estimator.coefficients(prepared, ours), ours).backward()
    theirs = log_probs.clone().requires_grad_()
    (-objective(theirs, recorded, prepared.advantages)).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    assert ours.grad.count_nonzero() > 0
