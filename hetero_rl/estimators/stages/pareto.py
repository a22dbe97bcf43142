"""Pareto smoothed importance weights and the shape k-hat of their tail (arXiv:1507.02646; JMLR 25, 2024).

k-hat below 0.5: the weights have finite variance. Below min(1 - 1/log10(S), 0.7): usable. Above: the tail rules the sum.
"""

import dataclasses
import math

import torch
from torch import Tensor

__all__ = ["MIN_WEIGHTS", "SmoothedWeights", "pareto_smooth"]

MIN_WEIGHTS = 25
"""Fewer finite weights than this leave a tail of fewer than five: nothing is fitted."""


@dataclasses.dataclass(frozen=True, slots=True)
class SmoothedWeights:
    """Log weights after smoothing, and the shape of their tail."""

    log_weights: Tensor
    """As given [s], the tail replaced; the largest is never exceeded, nothing is normalised."""
    k_hat: float
    """Shape of the tail. NaN: fewer than `MIN_WEIGHTS` weights. -inf: all of the tail is equal, as it is on-policy."""


def pareto_smooth(log_weights: Tensor, relative_efficiency: float = 1.0) -> SmoothedWeights:
    """Replaces the largest weights by the expected order statistics of a generalised Pareto fit.

    Weights of -inf take no part and stay as they are. Fewer than `MIN_WEIGHTS` finite weights, or a tail without spread,
    are returned untouched.

    Args:
        log_weights: Natural logs of the weights [s].
        relative_efficiency: Below 1 for correlated draws; a longer tail is fitted.
    """
    wide = log_weights.to(torch.float64)
    order = wide.argsort()
    order = order[wide[order].isfinite()]
    count = order.shape[0]
    if count < MIN_WEIGHTS:
        return SmoothedWeights(log_weights, math.nan)
    tail = order[-math.ceil(min(0.2 * count, 3 * math.sqrt(count / relative_efficiency))) :]
    peak = float(wide[order[-1]])
    cutoff = math.exp(float(wide[order[-tail.shape[0] - 1]]) - peak)
    exceedances = torch.exp(wide[tail] - peak) - cutoff
    if float(exceedances[-1] - exceedances[0]) <= 1e-12:
        return SmoothedWeights(log_weights, -math.inf)
    k_hat, sigma = _fit(exceedances.clamp(min=0))
    if not math.isfinite(k_hat):
        return SmoothedWeights(log_weights, k_hat)
    levels = (torch.arange(tail.shape[0], dtype=torch.float64, device=wide.device) + 0.5) / tail.shape[0]
    smoothed = (cutoff + _quantile(levels, k_hat, sigma)).log() + peak
    result = wide.index_put((tail,), smoothed.clamp(max=peak))
    return SmoothedWeights(result.to(log_weights.dtype), k_hat)


def _fit(exceedances: Tensor) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto by Zhang and Stephens, with the shape shrunk towards 0.5.

    Args:
        exceedances: Sorted, at least 0 [m].
    """
    count = exceedances.shape[0]
    grid = 30 + int(math.sqrt(count))
    quartile = float(exceedances[int(count / 4 + 0.5) - 1])
    largest = float(exceedances[-1])
    if quartile <= 0:
        return math.inf, math.nan
    steps = torch.arange(1, grid + 1, dtype=torch.float64, device=exceedances.device)
    candidates = 1 / largest + (1 - (grid / (steps - 0.5)).sqrt()) / (3 * quartile)
    shapes = torch.log1p(-candidates[:, None] * exceedances).mean(1)
    likelihood = count * ((-candidates / shapes).log() - shapes - 1)
    weights = torch.softmax(likelihood, 0)
    theta = float((candidates * weights).sum() / weights.sum())
    shape = float(torch.log1p(-theta * exceedances).mean())
    sigma = -shape / theta
    return (count * shape + 5) / (count + 10), sigma


def _quantile(levels: Tensor, shape: float, scale: float) -> Tensor:
    if abs(shape) < 1e-12:
        return -scale * torch.log1p(-levels)
    return scale * torch.expm1(-shape * torch.log1p(-levels)) / shape
