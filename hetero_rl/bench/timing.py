"""Interleaved measurement: ratios of neighbours in time, never absolute speed.

Two contenders run in turns, A B, B A, A B ..., and each pair gives one ratio. What disturbs the machine for a while then
disturbs both, and the median forgets the pairs that it hit between the two.
"""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from hetero_rl.bench.schema import Figure

__all__ = ["MIN_PAIRS", "Ratio", "compare", "compare_costs", "fastest", "spent"]

MIN_PAIRS = 5

Clock = Callable[[], float]


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as the baseline: median, smallest and largest of the pairs."""

    value: float
    low: float
    high: float

    def figure(
        self,
        name: str,
        baseline: str,
        *,
        target: float | None = None,
        relation: Literal["<=", ">="] | None = None,
    ) -> Figure:
        """The ratio as a figure of a report; `relation` is ">=" unless given."""
        if target is not None and relation is None:
            relation = ">="
        return Figure(
            name=name,
            value=self.value,
            unit="ratio",
            low=self.low,
            high=self.high,
            target=target,
            relation=relation,
            baseline=baseline,
        )


def compare(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    pairs: int = 9,
    clock: Clock = time.perf_counter,
) -> Ratio:
    """Seconds of the baseline over seconds of the candidate, from interleaved pairs after one warm-up of each.

    Args:
        candidate: What is judged; does the whole work once.
        baseline: What it is compared with; does the same work once.
        pairs: Number of pairs, at least `MIN_PAIRS`.
        clock: Seconds; `time.process_time` counts only what this process computed.
    """
    (ratio,) = compare_costs(lambda: spent(candidate, clock), lambda: spent(baseline, clock), pairs=pairs)
    return ratio


def compare_costs(
    candidate: Callable[[], Sequence[float]], baseline: Callable[[], Sequence[float]], *, pairs: int
) -> tuple[Ratio, ...]:
    """Costs of the baseline over those of the candidate, where a run has several, such as wall and processor time.

    Args:
        candidate: What is judged; does the whole work once and returns what it cost, more than 0.
        baseline: What it is compared with; returns costs of the same kinds in the same order.
        pairs: Number of pairs, at least `MIN_PAIRS`.
    """
    if pairs < MIN_PAIRS:
        raise ValueError(f"pairs is {pairs}, at least {MIN_PAIRS} are needed for a median")
    candidate()
    baseline()
    gc.collect()
    gc.freeze()  # what was there before need not be looked through again before every run
    try:
        ratios = [_ratios(candidate, baseline, judged_first=bool(number % 2)) for number in range(pairs)]
    finally:
        gc.unfreeze()
    return tuple(Ratio(statistics.median(kind), min(kind), max(kind)) for kind in zip(*ratios, strict=True))


def _ratios(
    candidate: Callable[[], Sequence[float]], baseline: Callable[[], Sequence[float]], *, judged_first: bool
) -> tuple[float, ...]:
    if judged_first:
        judged, compared = candidate(), baseline()
    else:
        compared, judged = baseline(), candidate()
    return tuple(other / own for own, other in zip(judged, compared, strict=True))


def fastest(
    variants: Mapping[str, Callable[[], object]], *, rounds: int = 5, clock: Clock = time.perf_counter
) -> str:
    """Name of the variant with the shortest single run; they run in turns."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, variant in variants.items():
            best[name] = min(best[name], spent(variant, clock)[0])
    return min(best, key=lambda name: best[name])


def spent(work: Callable[[], object], *clocks: Clock) -> tuple[float, ...]:
    """How far each clock went during the work, in seconds; garbage is collected before and not during it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        starts = [clock() for clock in clocks]
        work()
        # A clock too coarse for the work would divide by zero; one nanosecond is below any of them.
        return tuple(max(clock() - start, 1e-9) for clock, start in zip(clocks, starts, strict=True))
    finally:
        if enabled:
            gc.enable()
