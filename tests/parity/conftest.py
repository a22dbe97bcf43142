"""Fixtures of the comparison with other frameworks; `make test-parity` runs these in an environment of their own."""

import dataclasses
import importlib.util

import pytest
import torch

from hetero_rl.estimators import RecordedBatch, make_estimator, surrogate_loss

FRAMEWORKS = ("trl", "verl", "arviz")
collect_ignore_glob = (
    ["test_*.py"] if any(importlib.util.find_spec(name) is None for name in FRAMEWORKS) else []
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch as both sides see it: padded [B, T] for them, flat for us."""

    mask: torch.Tensor
    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    behavior_log_probs: torch.Tensor
    advantages: torch.Tensor

    def gradient(self, name, *, old_is_behavior=False, **options):
        """Our gradient, padded."""
        mask = self.mask.bool()
        behavior = self.old_log_probs if old_is_behavior else self.behavior_log_probs
        recorded = RecordedBatch(
            behavior_log_probs=behavior[mask],
            old_log_probs=self.old_log_probs[mask],
            lengths=mask.sum(1),
            group_ids=torch.arange(mask.shape[0]) // 2,
            rewards=self.advantages,
            max_new_tokens=mask.shape[1],
        )
        estimator = make_estimator(name, {"advantage": "none", **options})
        flat = self.log_probs[mask].clone().requires_grad_()
        needed = flat.detach() if estimator.needs.name == "CURRENT_POLICY" else None
        prepared = estimator.prepare(recorded, needed)
        surrogate_loss(prepared, estimator.coefficients(prepared, flat), flat).backward()
        padded = torch.zeros_like(self.log_probs)
        padded[mask] = flat.grad
        return padded


@pytest.fixture(params=range(5))
def case(request):
    generator = torch.Generator().manual_seed(request.param)
    lengths = torch.randint(1, 13, (8,), generator=generator)
    mask = (torch.arange(12) < lengths[:, None]).to(torch.float64)

    def noise(scale):
        return scale * torch.randn(8, 12, generator=generator, dtype=torch.float64)

    behavior = -3 * torch.rand(8, 12, generator=generator, dtype=torch.float64) - 0.05
    old = (behavior + noise(0.1)).clamp(max=-1e-3)
    return Case(
        mask=mask,
        behavior_log_probs=behavior,
        old_log_probs=old,
        log_probs=(old + noise(0.3)).clamp(max=-1e-3),
        advantages=torch.randn(8, generator=generator, dtype=torch.float64),
    )
