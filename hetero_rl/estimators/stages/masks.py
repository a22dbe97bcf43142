"""Masks: which tokens or sequences keep a gradient. True keeps."""

from torch import Tensor

__all__ = ["clip_keep"]


def clip_keep(
    ratio: Tensor, advantages: Tensor, epsilon_low: float | None, epsilon_high: float | None
) -> Tensor:
    """Where the clipped surrogate min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) has a gradient.

    Args:
        ratio: Ratios [n] or [s].
        advantages: Advantages of the same shape.
        epsilon_low: Lower margin; None never clips from below.
        epsilon_high: Upper margin; None never clips from above.
    """
    keep = ratio.isfinite()
    if epsilon_high is not None:
        keep &= (advantages <= 0) | (ratio <= 1 + epsilon_high)
    if epsilon_low is not None:
        keep &= (advantages >= 0) | (ratio >= 1 - epsilon_low)
    return keep
