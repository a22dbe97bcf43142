"""From the law of the sequence ratio to what an estimator makes of it, and up to what length.

At length n, log W is taken as normal with the law's variance V(n) and mean -V(n)/2, which is what E[W] = 1 asks of
sequences that mu sampled. Each estimator is asked for its coefficients at evenly spaced quantiles of that distribution; their
effective share (sum c)^2 / (n sum c^2) and mean are what a batch of such sequences would show. The usable length is where the
share falls below a floor. Raw importance sampling has the share exp(-V).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import torch

from hetero_rl.calibration.columns import Floats
from hetero_rl.calibration.law import RatioLaw
from hetero_rl.estimators import RecordedBatch, make_estimator

__all__ = ["SEQUENCE_LEVEL", "Expected", "UsableLength", "expected_at", "usable_length", "usable_lengths"]

SEQUENCE_LEVEL: dict[str, bool] = {"seq_is": False, "vespo": False, "gspo": True, "gepo": True}
"""Sequence-level estimators: whether each takes the geometric mean over tokens rather than the product."""

LONGEST = 2**20
"""Lengths are looked at up to here; a usable length of this means "at least this"."""

_QUANTILES = 2001
_LARGEST_VARIANCE = 64.0  # at which no method that takes the product has a share left
_LEVELS = np.array([NormalDist().inv_cdf((place + 0.5) / _QUANTILES) for place in range(_QUANTILES)])


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What an estimator makes of sequences of one length."""

    effective_share: float
    """(sum c)^2 / (n sum c^2) of its coefficients, from 0 to 1."""
    mean_coefficient: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsableLength:
    """Up to what length one estimator keeps its effective share above a floor."""

    estimator: str
    advantage: int
    """Sign of the advantage, 1 or -1: the coefficients of most methods differ by it."""
    floor: float
    tokens: int
    """Longest usable length; `LONGEST` where no length is too long."""
    low: int
    """With the variance at its upper bound."""
    high: int
    """With the variance at its lower bound."""


def expected_at(estimator: str, advantage: int, variance: float, length: int) -> Expected:
    """Effective share and mean coefficient where log W has that variance.

    Args:
        estimator: One of `SEQUENCE_LEVEL`.
        advantage: 1 or -1.
        variance: Of log W, nats^2.
        length: Tokens of each sequence; matters to methods that take the geometric mean.
    """
    log_w = -variance / 2 + math.sqrt(variance) * _LEVELS
    coefficients = _coefficients(estimator, advantage, log_w / length if SEQUENCE_LEVEL[estimator] else log_w)
    total, squares = float(coefficients.sum()), float((coefficients**2).sum())
    share = total * total / (len(coefficients) * squares) if squares > 0 else 0.0
    return Expected(share, total / len(coefficients))


def usable_length(law: RatioLaw, estimator: str, advantage: int, floor: float) -> UsableLength:
    """Where the effective share of one estimator crosses the floor, with bounds from the law's."""

    def longest(bound: str) -> int:
        if SEQUENCE_LEVEL[estimator]:
            return _crossing(
                lambda n: expected_at(estimator, advantage, law.variance(n, bound), n).effective_share, floor
            )
        return _length_at(law, _variance_at(estimator, advantage, floor), bound)

    return UsableLength(
        estimator=estimator,
        advantage=advantage,
        floor=floor,
        tokens=longest("value"),
        low=longest("high"),
        high=longest("low"),
    )


def usable_lengths(law: RatioLaw, floor: float) -> tuple[UsableLength, ...]:
    """Both signs of every sequence-level estimator, those that do not ask for the sign once."""
    return tuple(
        usable_length(law, estimator, advantage, floor)
        for estimator in SEQUENCE_LEVEL
        for advantage in ((1,) if estimator == "seq_is" else (1, -1))
    )


@functools.lru_cache(maxsize=256)
def _variance_at(estimator: str, advantage: int, floor: float) -> float:
    """The variance of log W at which a method that takes the product crosses the floor."""
    low, high = 0.0, _LARGEST_VARIANCE
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        above = expected_at(estimator, advantage, middle, 1).effective_share >= floor
        low, high = (middle, high) if above else (low, middle)
    return low


def _length_at(law: RatioLaw, variance: float, bound: str) -> int:
    """The largest length whose variance is not above the given one: diffusion * n + common * n^2 = variance."""
    diffusion, common = getattr(law.diffusion, bound), getattr(law.common, bound)
    root = math.sqrt(diffusion * diffusion + 4 * common * variance)
    # Written so that it holds without either term; without both, no length is too long.
    return min(LONGEST, int(2 * variance / (diffusion + root))) if diffusion + root > 0 else LONGEST


def _crossing(share_at: Callable[[int], float], floor: float) -> int:
    """The largest length whose share is at or above the floor, by bisection after a walk in octaves."""
    good = 0
    length = 1
    while length <= LONGEST:
        if share_at(length) < floor:
            return _bisected(share_at, floor, good, length)
        good, length = length, 2 * length
    return LONGEST


def _bisected(share_at: Callable[[int], float], floor: float, good: int, bad: int) -> int:
    while bad - good > max(1, good // 100):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if share_at(middle) >= floor else (good, middle)
    return good


def _coefficients(estimator: str, advantage: int, log_ratios: Floats | Sequence[float]) -> Floats:
    """Coefficients of one-token sequences, each in a group of its own, with these log-ratios."""
    ratios = torch.as_tensor(np.asarray(log_ratios), dtype=torch.float64)
    behavior = torch.full_like(ratios, -1.0)
    count = len(ratios)
    recorded = RecordedBatch(
        behavior_log_probs=behavior,
        lengths=torch.ones(count, dtype=torch.int64),
        group_ids=torch.arange(count),
        rewards=torch.full_like(ratios, float(advantage)),
        max_new_tokens=1,
    )
    method = make_estimator(estimator, {"advantage": "none"})
    found = method.coefficients(method.prepare(recorded), behavior + ratios)
    return np.asarray(found.sequence_means.numpy(), dtype=np.float64)
