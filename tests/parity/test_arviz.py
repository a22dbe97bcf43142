"""Pareto smoothing against arviz, where both fit a tail of the same size."""

import arviz
import pytest
import torch

from hetero_rl.estimators.stages.pareto import pareto_smooth


@pytest.mark.parametrize("count", [25, 30, 100, 225, 400, 1000])
@pytest.mark.parametrize("spread", [0.1, 0.7, 2.0])
def test_smoothed_weights_and_k_hat_are_those_of_arviz(count, spread):
    generator = torch.Generator().manual_seed(count)
    log_weights = spread * torch.randn(count, generator=generator, dtype=torch.float64)
    theirs, k_hat = arviz.psislw(log_weights.numpy(), 1.0, normalize=False)
    ours = pareto_smooth(log_weights)
    assert ours.k_hat == pytest.approx(float(k_hat), rel=1e-9)
    normalised = ours.log_weights - ours.log_weights.max()
    expected = torch.from_numpy(theirs.copy())
    torch.testing.assert_close(normalised, expected - expected.max(), rtol=1e-9, atol=1e-9)
