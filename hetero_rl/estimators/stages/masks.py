"""Masks: which tokens or sequences keep a gradient. 1 keeps, 0 drops, in the data type of what is compared.

Numbers rather than booleans: a mask is multiplied onto weights that are finite by construction, and torch compares into
numbers several times faster than into booleans on a CPU.
"""

import math

import torch
from torch import Tensor

__all__ = [
    "binary_chi_square",
    "binary_kl",
    "both",
    "choose",
    "clip_bounds",
    "clip_scale",
    "log_margins",
    "probability_change",
    "safe_log",
    "scaled_clip",
    "second_moment_limit",
    "window",
]

TINY = 1e-12
"""Keeps a probability away from 0 and 1 inside a logarithm or a denominator."""


def window(values: Tensor, low: Tensor | float | None, high: Tensor | float | None) -> Tensor:
    """Keeps low <= value <= high.

    Args:
        values: Any shape.
        low: Bound, or one per value; None has no lower bound.
        high: Bound, or one per value; None has no upper bound.
    """
    if high is None:
        return torch.ones_like(values) if low is None else torch.ge(values, low, out=torch.empty_like(values))
    keep = torch.le(values, high, out=torch.empty_like(values))
    return keep if low is None else keep.mul_(torch.ge(values, low, out=torch.empty_like(values)))


def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Keeps what two masks of one shape keep; None keeps all."""
    if first is None or second is None:
        return first if second is None else second
    return first * second


def choose(condition: Tensor, where: float, otherwise: float, dtype: torch.dtype) -> Tensor:
    """One of two constants by a condition [s], in full precision of `dtype`."""
    return torch.full(condition.shape, otherwise, dtype=dtype, device=condition.device).masked_fill_(
        condition, where
    )


def clip_bounds(
    advantages: Tensor, low: float | None, high: float | None, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """Bounds on a ratio inside which the clipped surrogate min(r A, clip(r, low, high) A) has a gradient.

    Args:
        advantages: Advantages [s].
        low: Lower clip; acts where A < 0. None never clips from below.
        high: Upper clip; acts where A > 0. None never clips from above.
        dual: Ratio above which a sequence with A < 0 has no gradient either (dual clip). None has none.

    Returns:
        Lower and upper bound of each sequence [s]; infinite where there is none.
    """
    lower = torch.full_like(advantages, -torch.inf)
    upper = torch.full_like(advantages, torch.inf)
    if low is not None:
        lower.masked_fill_(advantages < 0, low)
    if high is not None:
        upper.masked_fill_(advantages > 0, high)
    if dual is not None:
        upper.masked_fill_(advantages < 0, dual)
    return lower, upper


def clip_scale(advantages: Tensor, low: float, high: float) -> Tensor:
    """Scale [s] with which a one-sided clip by the sign of A is one comparison: keep where value * scale <= 1.

    Args:
        advantages: Advantages [s].
        low: Lower bound, at most 0; acts where A < 0. -inf never clips.
        high: Upper bound, at least 0; acts where A > 0. inf never clips.
    """
    scale = torch.zeros_like(advantages)
    scale.masked_fill_(advantages > 0, 1 / max(high, TINY))
    return scale.masked_fill_(advantages < 0, 1 / min(low, -TINY))


def safe_log(bound: float) -> float:
    """Log of a bound on a ratio; a bound of 0 never acts."""
    return math.log(bound) if bound > 0 else -math.inf


def log_margins(epsilon_low: float, epsilon_high: float) -> tuple[float, float]:
    """Bounds on a log-ratio from margins on the ratio; a lower margin of 1 or more never clips."""
    return math.log1p(-epsilon_low) if epsilon_low < 1 else -math.inf, math.log1p(epsilon_high)


def scaled_clip(values: Tensor, scale: Tensor) -> Tensor:
    """Keeps value * scale <= 1 [n]; the scale, of the same shape, is used up."""
    scaled = scale.mul_(values)
    return torch.le(scaled, 1.0, out=scaled)


def probability_change(behavior_log_probs: Tensor, ratio: Tensor) -> Tensor:
    """Change pi - mu of each token's probability [n], from log mu and pi/mu."""
    return (ratio - 1).mul_(behavior_log_probs.clamp(max=0).exp_())


def binary_kl(behavior_log_probs: Tensor, log_ratio: Tensor, ratio: Tensor) -> Tensor:
    """KL(mu || pi) of "this token or any other" [n], from log mu, log pi/mu and pi/mu."""
    mu = behavior_log_probs.clamp(max=0).exp_()
    others = (1 - mu).clamp_(min=TINY)
    other_ratio = torch.addcmul(torch.ones_like(mu), mu, ratio, value=-1).clamp_(min=TINY).div_(others).log_()
    # mu log(mu/pi) + (1 - mu) log((1 - mu)/(1 - pi)), both with their signs turned
    return mu.mul_(log_ratio).addcmul_(others, other_ratio).neg_()


def binary_chi_square(behavior_log_probs: Tensor, ratio: Tensor) -> Tensor:
    """Chi-square divergence of mu from pi over "this token or any other" [n], from log mu and pi/mu."""
    mu = behavior_log_probs.clamp(max=0).exp_()
    pi = mu * ratio
    return (mu - pi).square_().div_((pi * (1 - pi)).clamp_(min=TINY))


def second_moment_limit(log_ratios: Tensor, tau: float) -> float:
    """Square of the log-ratio from which on tokens are dropped, so that the mean square of the rest is below tau.

    Args:
        log_ratios: Log-ratios of the whole batch [n].
        tau: Bound on the mean square.

    Returns:
        The limit, itself dropped; infinity when the whole batch is within the bound.
    """
    # A dot product: no column of squares is made where none has to be dropped.
    if float(torch.dot(log_ratios, log_ratios)) / log_ratios.shape[0] < tau:
        return torch.inf
    squares = log_ratios.square()
    # A square below tau never lifts a mean that is below tau above it, so only the larger ones are sorted.
    large = squares[squares >= tau].sort().values.to(torch.float64)
    small_count = squares.shape[0] - large.shape[0]
    small_sum = squares.sum(dtype=torch.float64) - large.sum()
    counts = small_count + torch.arange(1, large.shape[0] + 1, dtype=torch.float64, device=large.device)
    within = int(((small_sum + large.cumsum(0)) / counts < tau).sum())
    return float(large[within]) if within < large.shape[0] else torch.inf
