"""The edges of the ratio between three policies, token by token.

    mu ──chip──► pi_old ──staleness──► pi          log(pi/mu) = log(pi_old/mu) + log(pi/pi_old)
    (recorded)   (recomputed)         (current)

A `LogRatio` and the `Weight` made of it remember which parts of log(pi/mu) they hold. `multiply` is the only way to put
two weights together and refuses a part that both hold, so that no part can be counted twice.
"""

import dataclasses
import enum

import torch
from torch import Tensor

__all__ = ["LOG_RATIO_BOUND", "LogRatio", "Part", "Weight", "bounded_exp", "multiply"]

LOG_RATIO_BOUND = 20.0
"""Natural logs of ratios are held within +-20 before `exp`: e^20 is far outside what any method trusts."""


class Part(enum.Flag):
    """What a ratio accounts for."""

    CHIP = enum.auto()
    """pi_old/mu: the same weights on another engine, chip or data type."""
    STALENESS = enum.auto()
    """pi/pi_old: the weights have moved on."""
    TOTAL = CHIP | STALENESS
    """pi/mu."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogRatio:
    """Natural log of a ratio per token [n] or per sequence [s], and what it accounts for."""

    values: Tensor
    part: Part
    bounded: bool = False
    """Whether every value is known to lie within +-`LOG_RATIO_BOUND`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """A detached weight per token [n] or per sequence [s], and what it accounts for."""

    values: Tensor
    part: Part


def bounded_exp(log_ratio: LogRatio, out: Tensor | None = None) -> Tensor:
    """The ratio, its log held within +-`LOG_RATIO_BOUND`; written to `out` where one is given."""
    if log_ratio.bounded:
        return torch.exp(log_ratio.values, out=out)
    return torch.clamp(log_ratio.values, -LOG_RATIO_BOUND, LOG_RATIO_BOUND, out=out).exp_()


def multiply(first: Weight, second: Weight) -> Weight:
    """Product of two weights that account for different things, of one shape; the first is overwritten.

    Raises:
        ValueError: Both account for the same part of log(pi/mu), which would count it twice.
    """
    if first.part & second.part:
        shared = first.part & second.part
        raise ValueError(f"both weights account for {shared.name}: multiplying them would count it twice")
    return Weight(first.values.mul_(second.values), first.part | second.part)
