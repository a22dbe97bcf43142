"""Masks: which tokens or sequences keep a gradient. 1 keeps, 0 drops, in the data type of what is compared.

Numbers rather than booleans: a mask is multiplied onto weights that are finite by construction, and torch compares into
numbers several times faster than into booleans on a CPU.
"""

import torch
from torch import Tensor

__all__ = ["binary_chi_square", "binary_kl", "both", "clip_bounds", "second_moment_limit", "window"]

TINY = 1e-12
"""Keeps a probability away from 0 and 1 inside a logarithm or a denominator."""


def window(values: Tensor, low: Tensor | float | None, high: Tensor | float | None) -> Tensor:
    """Keeps low <= value <= high.

    Args:
        values: Any shape.
        low: Bound, or one per value; None has no lower bound.
        high: Bound, or one per value; None has no upper bound.
    """
    keep = torch.ones_like(values)
    if high is not None:
        torch.le(values, high, out=keep)
    if low is None:
        return keep
    above = torch.ge(values, low, out=torch.empty_like(values))
    return above if high is None else keep.mul_(above)


def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Keeps what two masks of one shape keep; None keeps all."""
    if first is None or second is None:
        return first if second is None else second
    return first * second


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


def binary_kl(behavior: Tensor, current: Tensor) -> Tensor:
    """KL(mu || pi) of "this token or any other", from the two probabilities of the token [n]."""
    mu, pi = behavior.clamp(TINY, 1 - TINY), current.clamp(TINY, 1 - TINY)
    return mu * (mu / pi).log() + (1 - mu) * ((1 - mu) / (1 - pi)).log()


def binary_chi_square(behavior: Tensor, current: Tensor) -> Tensor:
    """Chi-square divergence of mu from pi over "this token or any other" [n]."""
    return (behavior - current).square() / (current * (1 - current)).clamp(min=TINY)


def second_moment_limit(log_ratios: Tensor, tau: float) -> float:
    """Square of the log-ratio from which on tokens are dropped, so that the mean square of the rest is below tau.

    Args:
        log_ratios: Log-ratios of the whole batch [n].
        tau: Bound on the mean square.

    Returns:
        The limit, itself dropped; infinity when the whole batch is within the bound.
    """
    squares = log_ratios.square()
    if float(squares.mean(dtype=torch.float64)) < tau:
        return torch.inf
    # A square at or below tau never lifts a mean that is below tau above it, so only the larger ones are sorted.
    large = squares[squares >= tau].sort().values.to(torch.float64)
    small_count = squares.shape[0] - large.shape[0]
    small_sum = squares.sum(dtype=torch.float64) - large.sum()
    counts = small_count + torch.arange(1, large.shape[0] + 1, dtype=torch.float64, device=large.device)
    within = (small_sum + large.cumsum(0)) / counts < tau
    return float(large[int(within.sum())])
