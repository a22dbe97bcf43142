"""Statistics of the gap log pi - log mu. Pure functions on columns.

    k1 = mean(log mu - log pi), k3 = mean(x - 1 - log x) with x = pi/mu     estimates of KL(mu || pi) where mu sampled
    pearson                                                                of the probabilities, as MiniMax-M1 reports it

Quantiles are of |gap|: a chip's largest errors decide what a product over tokens does.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from hetero_rl.calibration.columns import Floats, Integers, PairColumns

__all__ = [
    "ENTROPY_EDGES",
    "PROBABILITY_EDGES",
    "QUANTILES",
    "Bin",
    "GapSummary",
    "TokenBin",
    "by_entropy",
    "by_position",
    "by_probability",
    "by_token",
    "gap_summary",
]

QUANTILES = (0.5, 0.9, 0.99, 0.999)
PROBABILITY_EDGES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 1.0)
ENTROPY_EDGES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, np.inf)
_LOG_BOUND = 20.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GapSummary:
    """The gap of many tokens in a few numbers, in nats unless said otherwise."""

    tokens: int
    sequences: int
    not_finite: int
    """Tokens without a finite gap; they are in no other number."""
    mean: float
    sd: float
    mean_absolute: float
    quantiles: tuple[float, ...]
    """Of |gap|, at `QUANTILES`."""
    maximum: float
    """Largest |gap|."""
    k1: float
    k3: float
    pearson: float
    """Correlation of the two probabilities; NaN where one of them is constant."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The gap of the tokens between two bounds, low included."""

    low: float
    high: float
    tokens: int
    mean: float
    sd: float
    mean_absolute: float
    p99: float
    maximum: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenBin:
    """The gap of one token id."""

    token_id: int
    tokens: int
    mean: float
    mean_absolute: float
    maximum: float


def gap_summary(columns: PairColumns) -> GapSummary:
    """All tokens together; raises ValueError when no token has a finite gap."""
    usable = columns.usable
    gap = usable.gap
    absolute = np.abs(gap)
    held = np.clip(gap, -_LOG_BOUND, _LOG_BOUND)
    return GapSummary(
        tokens=len(gap),
        sequences=len(usable.lengths),
        not_finite=len(columns.reference) - len(gap),
        mean=float(gap.mean()),
        sd=float(gap.std()),
        mean_absolute=float(absolute.mean()),
        quantiles=tuple(float(value) for value in np.quantile(absolute, QUANTILES)),
        maximum=float(absolute.max()),
        k1=-float(gap.mean()),
        k3=float((np.expm1(held) - held).mean()),
        pearson=_pearson(np.exp(usable.reference), np.exp(usable.measured)),
    )


def by_position(columns: PairColumns) -> tuple[Bin, ...]:
    """Bins by position in the text: 0, 1, 2 to 3, 4 to 7, and so on."""
    highest = int(columns.positions.max(initial=1))
    edges = [0.0, *(2.0**power for power in range(int(np.log2(max(highest, 1))) + 2))]
    return _bins(columns, columns.positions.astype(np.float64), edges)


def by_probability(columns: PairColumns) -> tuple[Bin, ...]:
    """Bins by the reference's probability of the token."""
    return _bins(columns, np.exp(columns.reference), PROBABILITY_EDGES)


def by_entropy(columns: PairColumns) -> tuple[Bin, ...]:
    """Bins by the entropy of the reference's distribution in nats; none when it is not known."""
    return () if columns.entropy is None else _bins(columns, columns.entropy, ENTROPY_EDGES)


def by_token(columns: PairColumns, limit: int = 20, least: int = 3) -> tuple[TokenBin, ...]:
    """The token ids with the largest mean |gap|, worst first.

    Args:
        columns: The pair.
        limit: Most ids returned.
        least: Ids seen more rarely than this are left out.
    """
    usable = columns.usable
    ids, index, counts = np.unique(usable.token_ids, return_inverse=True, return_counts=True)
    gap = usable.gap
    means = np.bincount(index, gap) / counts
    absolutes = np.bincount(index, np.abs(gap)) / counts
    order = [int(place) for place in np.argsort(-absolutes, kind="stable") if counts[place] >= least][:limit]
    return tuple(
        TokenBin(
            token_id=int(ids[place]),
            tokens=int(counts[place]),
            mean=float(means[place]),
            mean_absolute=float(absolutes[place]),
            maximum=float(np.abs(gap[index == place]).max()),
        )
        for place in order
    )


def _bins(columns: PairColumns, values: Floats, edges: Sequence[float]) -> tuple[Bin, ...]:
    gap = columns.gap
    finite = np.isfinite(gap)
    # The last bin has its upper bound inside: a probability of exactly 1 belongs somewhere.
    places: Integers = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    found = []
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = gap[finite & (places == place)]
        if len(inside):
            found.append(_bin(float(low), float(high), inside))
    return tuple(found)


def _bin(low: float, high: float, gap: Floats) -> Bin:
    absolute = np.abs(gap)
    return Bin(
        low=low,
        high=high,
        tokens=len(gap),
        mean=float(gap.mean()),
        sd=float(gap.std()),
        mean_absolute=float(absolute.mean()),
        p99=float(np.quantile(absolute, 0.99)),
        maximum=float(absolute.max()),
    )


def _pearson(first: Floats, second: Floats) -> float:
    a, b = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else float("nan")
