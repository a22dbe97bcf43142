"""Masks: which tokens or sequences keep a gradient. 1 keeps, 0 drops, in the data type of what is compared.

Numbers rather than booleans: a mask is multiplied onto weights that are finite by construction, and torch compares into
numbers several times faster than into booleans on a CPU.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from hetero_rl.estimators.stages.level import to_tokens
from hetero_rl.estimators.stages.loops import compiled_loops

__all__ = [
    "binary_chi_square",
    "both",
    "choose",
    "clip_bounds",
    "log_margins",
    "probability_fall",
    "safe_log",
    "second_moment",
    "second_moment_limit",
    "sequence_hold",
    "sequence_window",
    "signed_binary_kl",
    "window",
]

TINY = 1e-12
"""Keeps a probability away from 0 and 1 inside a logarithm or a denominator."""


def window(
    values: Tensor, low: Tensor | float | None, high: Tensor | float | None, out: Tensor | None = None
) -> Tensor:
    """Keeps low <= value <= high.

    Args:
        values: Any shape.
        low: Bound, or one per value; None has no lower bound.
        high: Bound, or one per value; None has no upper bound.
        out: Where the mask is written; None makes it new. It may be `values` where one of the bounds is None.
    """
    keep = torch.empty_like(values) if out is None else out
    if high is None:
        return keep.fill_(1) if low is None else torch.ge(values, low, out=keep)
    if low is None:
        return torch.le(values, high, out=keep)
    # What lies inside is left as it is by holding it inside.
    held = torch.clamp(values, max=high, out=keep).clamp_(min=low)
    return torch.eq(held, values, out=held)


def both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Keeps what two masks of one shape keep, in place of the first; None keeps all."""
    if first is None or second is None:
        return first if second is None else second
    return first.mul_(second)


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


def safe_log(bound: float) -> float:
    """Log of a bound on a ratio; a bound of 0 never acts."""
    return math.log(bound) if bound > 0 else -math.inf


def log_margins(epsilon_low: float, epsilon_high: float) -> tuple[float, float]:
    """Bounds on a log-ratio from margins on the ratio; a lower margin of 1 or more never clips."""
    return math.log1p(-epsilon_low) if epsilon_low < 1 else -math.inf, math.log1p(epsilon_high)


def sequence_window(values: Tensor, low: Tensor, high: Tensor, lengths: Tensor, out: Tensor) -> Tensor:
    """Keeps low <= value <= high, with bounds per sequence.

    Args:
        values: Column [n].
        low: Lower bounds [s].
        high: Upper bounds [s].
        lengths: Tokens of each sequence [s].
        out: Where the mask is written [n]; another column than `values`.
    """
    loops = compiled_loops(values)
    if loops is None:
        tokens = values.shape[0]
        return window(values, to_tokens(low, lengths, tokens), to_tokens(high, lengths, tokens), out)
    bounds = (bound.to(values.dtype).numpy() for bound in (low, high))
    loops.window(values.numpy(), *bounds, lengths.numpy(), out.numpy())
    return out


def sequence_hold(values: Tensor, low: Tensor, high: Tensor, lengths: Tensor, out: Tensor) -> Tensor:
    """Values held within bounds per sequence [n]; arguments as for `sequence_window`."""
    loops = compiled_loops(values)
    if loops is None:
        tokens = values.shape[0]
        held = torch.minimum(values, to_tokens(high, lengths, tokens), out=out)
        return torch.maximum(held, to_tokens(low, lengths, tokens), out=out)
    bounds = (bound.to(values.dtype).numpy() for bound in (low, high))
    loops.hold(values.numpy(), *bounds, lengths.numpy(), out.numpy())
    return out


def probability_fall(behavior_log_probs: Tensor, ratio: Tensor, out: Tensor) -> Tensor:
    """Fall mu - pi of each token's probability [n], from log mu and pi/mu; written to `out`."""
    mu = torch.exp(behavior_log_probs, out=out)
    return mu.addcmul_(mu, ratio, value=-1)


def signed_binary_kl(
    behavior_log_probs: Tensor, log_ratio: Tensor, ratio: Tensor, out: tuple[Tensor, Tensor]
) -> Tensor:
    """KL(mu || pi) of "this token or any other" in nats, with the sign of pi - mu [n]; in the first of `out`.

    KL = -(mu log(pi/mu) + (1 - mu) log((1 - pi)/(1 - mu))), a weighted mean of two log-ratios.

    Args:
        behavior_log_probs: log mu of each token [n].
        log_ratio: log pi/mu [n].
        ratio: pi/mu [n].
        out: Two columns to work in [n].
    """
    divergence, mu = out[0], torch.exp(behavior_log_probs, out=out[1])
    loops = compiled_loops(mu)
    if loops is None:
        others = torch.addcmul(torch.ones_like(mu), mu, ratio, value=-1, out=divergence).clamp_(min=TINY)
        log_others = others.div_((1 - mu).clamp_(min=TINY)).log_()
        return torch.lerp(log_others, log_ratio, mu, out=divergence).copysign_(log_ratio)
    column = divergence.numpy()
    one, tiny = column.dtype.type(1), column.dtype.type(TINY)
    loops.others_ratio(mu.numpy(), ratio.numpy(), one, tiny, column)
    divergence.log_()
    loops.signed_binary_kl(mu.numpy(), log_ratio.numpy(), column, one, column)
    return divergence


def binary_chi_square(behavior_log_probs: Tensor, ratio: Tensor) -> Tensor:
    """Chi-square divergence of mu from pi over "this token or any other" [n], from log mu and pi/mu."""
    mu = behavior_log_probs.exp()
    pi = mu * ratio
    return (mu - pi).square_().div_((pi * (1 - pi)).clamp_(min=TINY))


def second_moment(log_ratios: Iterable[Tensor]) -> float:
    """Mean square of the log-ratios of the whole batch, in any pieces."""
    total, count = 0.0, 0
    for piece in log_ratios:
        total += float(torch.dot(piece, piece))
        count += piece.shape[0]
    return total / count


def second_moment_limit(log_ratios: Iterable[Tensor], tau: float) -> float:
    """Square of the log-ratio from which on tokens are dropped, so that the mean square of the rest is below tau.

    Args:
        log_ratios: Log-ratios of the whole batch, in any pieces.
        tau: Bound on the mean square.

    Returns:
        The limit, itself dropped; infinity when the whole batch is within the bound.
    """
    small_sum, small_count = 0.0, 0
    large: list[Tensor] = []
    for piece in log_ratios:
        # A square below tau never lifts a mean that is below tau above it, so only the larger ones are sorted.
        squares = piece.square()
        beyond = squares[squares >= tau].to(torch.float64)
        large.append(beyond)
        small_sum += float(squares.sum(dtype=torch.float64)) - float(beyond.sum())
        small_count += piece.shape[0] - beyond.shape[0]
    ordered = torch.cat(large).sort().values
    counts = small_count + torch.arange(1, ordered.shape[0] + 1, dtype=torch.float64, device=ordered.device)
    within = int(((small_sum + ordered.cumsum(0)) / counts < tau).sum())
    return float(ordered[within]) if within < ordered.shape[0] else math.inf
