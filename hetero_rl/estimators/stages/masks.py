"""Masks: which tokens or sequences keep a gradient. 1 keeps, 0 drops, in the data type of what is compared.

Numbers rather than booleans: a mask is multiplied onto weights that are finite by construction, and torch compares into
numbers several times faster than into booleans on a CPU.
"""

import math
from collections.abc import Iterable
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from hetero_rl.estimators.stages.level import roots_of_positions, to_tokens
from hetero_rl.estimators.stages.loops import compiled_loops

__all__ = [
    "binary_chi_square",
    "choose",
    "clip_bounds",
    "drop_beyond_binary_kl",
    "drop_outside",
    "drop_outside_per_root",
    "log_margins",
    "probability_fall",
    "safe_log",
    "second_moment",
    "second_moment_limit",
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


def sequence_window(
    values: Tensor, bounds: tuple[Tensor, Tensor], inside: Tensor, lengths: Tensor, out: Tensor
) -> Tensor:
    """A number per sequence where low <= value <= high, else 0.

    Args:
        values: Column [n].
        bounds: Lower and upper bound of each sequence [s].
        inside: The number of each sequence [s]; 1 makes a mask.
        lengths: Tokens of each sequence [s].
        out: Where the result is written [n]; another column than `values`.
    """
    loops = compiled_loops(values)
    if loops is None:
        tokens = values.shape[0]
        low, high = (to_tokens(bound, lengths, tokens) for bound in bounds)
        keep = window(values, low, high, out)
        return keep.mul_(to_tokens(inside, lengths, tokens))
    columns = (column.to(values.dtype).numpy() for column in (*bounds, inside))
    loops.window(values.numpy(), *columns, lengths.numpy(), out.numpy())
    return out


def drop_outside(
    weight: Tensor, values: Tensor, bounds: tuple[Tensor, Tensor], lengths: Tensor, cap: float = math.inf
) -> Tensor:
    """Holds a weight below `cap`, and sets it to 0 where not low <= value <= high; in place.

    Args:
        weight: Finite weight of each token [n].
        values: What is compared with the bounds [n]; another column than `weight`.
        bounds: Lower and upper bound of each sequence [s].
        lengths: Tokens of each sequence [s].
        cap: Largest weight.
    """
    loops = compiled_loops(weight)
    if loops is None:
        tokens = values.shape[0]
        low, high = (to_tokens(bound, lengths, tokens) for bound in bounds)
        keep = window(values, low, high)
        return weight.clamp_(max=cap).mul_(keep)
    columns = (bound.to(values.dtype).numpy() for bound in bounds)
    column = weight.numpy()
    loops.drop_outside(values.numpy(), *columns, column.dtype.type(cap), lengths.numpy(), column)
    return weight


def drop_outside_per_root(
    weight: Tensor, values: Tensor, bounds: tuple[Tensor, Tensor], lengths: Tensor
) -> Tensor:
    """As `drop_outside`, of values over the square root of their position in the sequence, from 1."""
    roots = roots_of_positions(lengths, values.dtype)
    loops = compiled_loops(weight)
    if loops is None:
        per_token = torch.cat([roots[:length] for length in lengths.tolist()])
        return drop_outside(weight, values / per_token, bounds, lengths)
    columns = (bound.to(values.dtype).numpy() for bound in bounds)
    loops.drop_outside_per_root(values.numpy(), roots.numpy(), *columns, lengths.numpy(), weight.numpy())
    return weight


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
    log_others = _compiled_log_others(loops, mu, ratio, divergence)
    loops.signed_binary_kl(mu.numpy(), log_ratio.numpy(), mu.numpy().dtype.type(1), log_others.numpy())
    return log_others


def drop_beyond_binary_kl(
    ratio: Tensor,
    behavior_log_probs: Tensor,
    log_ratio: Tensor,
    bounds: tuple[Tensor, Tensor],
    lengths: Tensor,
    cap: float,
    out: tuple[Tensor, Tensor],
) -> Tensor:
    """Holds pi/mu below `cap`, and sets it to 0 where the signed binary KL is outside bounds; in place.

    Args:
        ratio: pi/mu of each token [n].
        behavior_log_probs: log mu [n].
        log_ratio: log pi/mu [n].
        bounds: Lower, at most 0, and upper, at least 0, of each sequence [s], in nats.
        lengths: Tokens of each sequence [s].
        cap: Largest weight.
        out: Two columns to work in [n].
    """
    loops = compiled_loops(ratio)
    if loops is None:
        moved = signed_binary_kl(behavior_log_probs, log_ratio, ratio, out)
        return drop_outside(ratio, moved, bounds, lengths, cap)
    mu = torch.exp(behavior_log_probs, out=out[0])
    log_others = _compiled_log_others(loops, mu, ratio, out[1])
    compared = (column.numpy() for column in (mu, log_ratio, log_others))
    limits = (bound.to(ratio.dtype).numpy() for bound in bounds)
    column = ratio.numpy()
    constants = np.array((1, cap), dtype=column.dtype)
    loops.drop_beyond_binary_kl(*compared, *limits, constants, lengths.numpy(), column)
    return ratio


def _compiled_log_others(loops: ModuleType, mu: Tensor, ratio: Tensor, out: Tensor) -> Tensor:
    """log((1 - pi)/(1 - mu)) of each token [n]."""
    column = out.numpy()
    loops.others_ratio(mu.numpy(), ratio.numpy(), column.dtype.type(1), column.dtype.type(TINY), column)
    return out.log_()


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
