"""The law of the sequence ratio: how mean and variance of log W grow with length.

    log W_n = sum of the gap over the first n tokens of a sequence
    mean(log W_n) = drift * n          var(log W_n) = diffusion * n + common * n^2

`diffusion` is what independent errors of tokens add, `common` what all tokens of a sequence share. Both come from sums over
blocks of tokens: blocks of one sequence differ by the first, sequences by the second as well, which is used only where the
data shows it. Bounds are percentiles of a bootstrap over whole sequences, since tokens of one sequence are not
independent. Where mu sampled the sequences, E[W] = 1 asks drift = -diffusion / 2.
"""

import dataclasses

import numpy as np

from hetero_rl.calibration.columns import Floats, Integers, PairColumns

__all__ = [
    "Bounded",
    "LawPoint",
    "RatioLaw",
    "fit_law",
    "measured_crossing",
    "measured_shares",
    "prefix_sums",
]

_LEAST_SEQUENCES = 4
_GRID_POINTS = 24
_LOW, _HIGH = 5.0, 95.0
_SURE = 1.0  # percentile of the common variance that must be above 0 for it to be used


@dataclasses.dataclass(frozen=True, slots=True)
class Bounded:
    """An estimate and its 90 % bounds."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class LawPoint:
    """What was measured at one length."""

    length: int
    sequences: int
    """Sequences that are at least that long."""
    mean: Bounded
    variance: Bounded


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RatioLaw:
    """The fitted law, in nats per token, nats^2 per token, nats^2 per token^2."""

    drift: Bounded
    diffusion: Bounded
    common: Bounded
    points: tuple[LawPoint, ...]
    sequences: int

    def mean(self, length: float) -> float:
        """Expected log W of a sequence of that many tokens."""
        return self.drift.value * length

    def variance(self, length: float, bound: str = "value") -> float:
        """Variance of log W at that length; `bound` is "value", "low" or "high"."""
        diffusion, common = getattr(self.diffusion, bound), getattr(self.common, bound)
        return float(diffusion * length + common * length * length)


def fit_law(
    columns: PairColumns, *, longest: int | None = None, resamples: int = 200, seed: int = 0
) -> RatioLaw | None:
    """Fits the law to sequences that the measured side sampled.

    Args:
        columns: The pair; each sequence begins with its first sampled token.
        longest: Only the first so many tokens of each sequence are looked at; None: all.
        resamples: Bootstrap samples of whole sequences.
        seed: Of the bootstrap.

    Returns:
        None with fewer than four sequences: a variance of three numbers says nothing.
    """
    usable = columns.usable
    if len(usable.lengths) < _LEAST_SEQUENCES:
        return None
    grid = _grid(usable.lengths, longest)
    sums = prefix_sums(usable, grid)
    present = np.isfinite(sums)
    weights = np.ones((1, len(sums)))
    draws = np.random.default_rng(seed).multinomial(len(sums), [1 / len(sums)] * len(sums), size=resamples)
    means, variances = _moments(sums, present, np.vstack([weights, draws.astype(np.float64)]))
    counts = present.sum(axis=0)
    drift, diffusion, common = _components(_blocks(usable, int(grid[-1])), np.vstack([weights, draws]))
    return RatioLaw(
        drift=_bounded(drift),
        diffusion=_bounded(diffusion),
        common=_bounded(common),
        points=tuple(
            LawPoint(
                int(length), int(counts[place]), _bounded(means[:, place]), _bounded(variances[:, place])
            )
            for place, length in enumerate(grid)
        ),
        sequences=len(usable.lengths),
    )


def prefix_sums(columns: PairColumns, grid: Integers) -> Floats:
    """Log W over the first n tokens of each sequence, for each n of the grid [S, G]; NaN where a sequence is shorter."""
    gap = columns.gap
    ends = np.cumsum(columns.lengths)
    starts = ends - columns.lengths
    total = np.concatenate([[0.0], np.cumsum(gap)])
    stops = starts[:, None] + grid[None, :]
    there = grid[None, :] <= columns.lengths[:, None]
    sums = total[np.where(there, stops, 0)] - total[starts][:, None]
    return np.where(there, sums, np.nan)


def measured_shares(columns: PairColumns, grid: Integers) -> Floats:
    """(sum W)^2 / (n sum W^2) of the first n tokens, for each n of the grid [G]: the effective share as it is."""
    sums = prefix_sums(columns.usable, grid)
    shares = np.full(len(grid), np.nan)
    for place in range(len(grid)):
        log_w = sums[:, place][np.isfinite(sums[:, place])]
        if len(log_w) >= _LEAST_SEQUENCES:
            w = np.exp(log_w - log_w.max())
            shares[place] = w.sum() ** 2 / (len(w) * (w * w).sum())
    return shares


def measured_crossing(columns: PairColumns, floor: float) -> int | None:
    """Shortest length at which the measured effective share is below the floor; None where it never is.

    Looked for up to the length that half of the sequences have.
    """
    longest = int(np.sort(columns.usable.lengths)[len(columns.usable.lengths) // 2])
    lengths = np.arange(1, longest + 1)
    below = lengths[measured_shares(columns, lengths) < floor]
    return int(below[0]) if len(below) else None


def _grid(lengths: Integers, longest: int | None) -> Integers:
    """Lengths that at least half of the sequences have, and four of them in any case; evenly spaced."""
    enough = int(np.sort(lengths)[max(-len(lengths), -max(_LEAST_SEQUENCES, (len(lengths) + 1) // 2))])
    end = enough if longest is None else min(enough, longest)
    return np.unique(np.linspace(1, end, min(end, _GRID_POINTS)).round().astype(np.int64))


def _moments(sums: Floats, present: np.ndarray, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted means and unbiased variances [R, G] for each row of sequence counts [R, S]."""
    filled = np.where(present, sums, 0.0)
    count = weights @ present
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (weights @ filled) / count
        squares = (weights @ (filled * filled)) / count
        variances = np.maximum(squares - means * means, 0.0) * count / (count - 1)
    return np.nan_to_num(means), np.nan_to_num(variances, posinf=0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class _Blocks:
    """Sums of the gap over blocks of equal length, as sums per sequence [S]."""

    size: int
    counts: Floats
    totals: Floats
    squares: Floats


def _blocks(columns: PairColumns, longest: int) -> _Blocks:
    """Cuts the first `longest` tokens of each sequence into blocks; what is left over at the end is not used."""
    size = max(1, int(np.median(np.minimum(columns.lengths, longest))) // _GRID_POINTS)
    inside = columns.offsets < longest
    counts = np.minimum(columns.lengths, longest) // size
    block = columns.offsets // size
    ids = columns.sequence_ids
    whole = inside & (block < counts[ids])
    first = np.cumsum(counts) - counts
    sums = np.bincount(first[ids[whole]] + block[whole], columns.gap[whole], minlength=int(counts.sum()))
    owner = np.repeat(np.arange(len(counts)), counts)
    return _Blocks(
        size,
        counts.astype(np.float64),
        np.bincount(owner, sums, minlength=len(counts)).astype(np.float64),
        np.bincount(owner, sums * sums, minlength=len(counts)).astype(np.float64),
    )


def _components(blocks: _Blocks, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Drift, diffusion and common variance [R] of weighted sequences: one-way analysis of variance of the blocks."""
    counts, size = blocks.counts, blocks.size
    drift = (weights @ blocks.totals) / np.maximum(weights @ counts, 1) / size
    cut = weights * (counts >= 2)
    number, sequences = cut @ counts, cut.sum(axis=1)
    means = blocks.totals / np.maximum(counts, 1)
    within = (cut @ (blocks.squares - counts * means**2)) / np.maximum(number - sequences, 1)
    centre = (cut @ means) / np.maximum(sequences, 1)
    between = (cut @ means**2 - sequences * centre**2) / np.maximum(sequences - 1, 1)
    share = (cut @ (1 / np.maximum(counts, 1))) / np.maximum(sequences, 1)
    common = (between - within * share) / size**2
    if np.percentile(common[1:], _SURE) > 0:
        return drift, np.maximum(within, 0.0) / size, np.maximum(common, 0.0)
    middle = (cut @ blocks.totals) / np.maximum(number, 1)
    whole = (cut @ blocks.squares - number * middle**2) / np.maximum(number - 1, 1)
    return drift, np.maximum(whole, 0.0) / size, np.zeros_like(drift)


def _bounded(values: Floats) -> Bounded:
    """The first value, with the percentiles of the others."""
    low, high = np.percentile(values[1:], [_LOW, _HIGH])
    return Bounded(float(values[0]), float(min(low, values[0])), float(max(high, values[0])))
