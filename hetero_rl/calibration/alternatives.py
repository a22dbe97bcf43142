"""Does a fault explain the gap? A matched filter: the gap is regressed on what the fault would make of it.

    d = log pi - (what the trainer itself gives under the fault)      g = log pi - log mu
    g = share * d + rest        share 1: the fault is there; share 0: it is not

The share's standard error is the heteroscedastic one, so a fault far below the chip's own noise is found with enough tokens.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hetero_rl.calibration.causes import finding_of, undecided
from hetero_rl.calibration.columns import Floats, PairColumns
from hetero_rl.reports.findings import Finding
from hetero_rl.reports.text import format_number

__all__ = ["Alternative", "Explanation", "best_explanation", "explain"]

_LEAST_SIGNIFICANCE = 8.0
_SHARE = (0.75, 1.25)
_LEAST_EXPLAINED = 0.05  # of the gap's square: less is not the cause of anything a person would notice
_UNDECIDED = 0.9  # a runner-up that explains this much of what the best explains cannot be ruled out
_LEAST_DIFFERENCE = 1e-6  # nats; what moves less cannot be seen in float32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alternative:
    """What the trainer itself gives under one fault."""

    code: str
    """One of `causes.CAUSES`."""
    detail: str
    """What its sentence names, such as the tensor."""
    log_probs: Floats
    """Log-probabilities of the pair's tokens [N]."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How well one alternative explains the gap."""

    alternative: Alternative
    share: float
    significance: float
    """Share over its standard error."""
    explained: float
    """Part of the gap's square that is gone, from 0 to 1."""

    @property
    def holds(self) -> bool:
        """Whether the fault is there."""
        return (
            _SHARE[0] < self.share < _SHARE[1]
            and self.significance > _LEAST_SIGNIFICANCE
            and self.explained > _LEAST_EXPLAINED
        )


def explain(columns: PairColumns, alternative: Alternative) -> Explanation:
    """Regresses the gap on the alternative's; tokens that are not finite in either are left out."""
    gap, difference = columns.gap, columns.reference - alternative.log_probs
    usable = np.isfinite(gap) & np.isfinite(difference)
    g, d = gap[usable], difference[usable]
    power, total = float(d @ d), float(g @ g)
    if total == 0 or power < len(d) * _LEAST_DIFFERENCE**2:
        return Explanation(alternative=alternative, share=0.0, significance=0.0, explained=0.0)
    share = float(g @ d) / power
    rest = g - share * d
    error = float(np.sqrt((d * d) @ (rest * rest))) / power
    whole = g - d
    return Explanation(
        alternative=alternative,
        share=share,
        significance=share / error if error > 0 else np.inf,
        explained=1 - float(whole @ whole) / total,
    )


def best_explanation(
    columns: PairColumns, alternatives: Sequence[Alternative], subject: str = ""
) -> Finding | None:
    """The fault that explains the gap, or the two that cannot be told apart; None when none does."""
    holding = [found for found in (explain(columns, one) for one in alternatives) if found.holds]
    if not holding:
        return None
    best, *others = sorted(holding, key=lambda found: found.explained, reverse=True)
    rivals = [
        other
        for other in others
        if other.explained >= _UNDECIDED * best.explained and _left(other) <= 2 * _left(best)
    ]
    finding = _finding(best, subject)
    return undecided(finding, _finding(rivals[0], subject)) if rivals else finding


def _left(found: Explanation) -> float:
    return 1 - found.explained + 1e-9


def _finding(found: Explanation, subject: str) -> Finding:
    evidence = (
        f"the trainer with this fault explains {100 * found.explained:.1f} % of the gap's square "
        f"(share {format_number(found.share)}, {found.significance:.0f} standard errors)"
    )
    return finding_of(found.alternative.code, found.alternative.detail, (evidence,), subject)
