"""PPO's clipped token ratio, and the base of those that clip the same way.

    r_t = pi(y_t)/anchor(y_t)
    coefficient_t = r_t, and 0 where min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) is flat,
                    and 0 where A < 0 and r > clip_ratio_c (dual clip, off unless set)

arXiv:1707.06347; dual clip: arXiv:1912.09729. The anchor is mu as recorded ("behavior") or pi_old as recomputed ("old"). With
one update per batch and the anchor "old" evaluated at the same weights, r is 1 and no clip ever acts. There is no critic
here: advantages come from the prompt's group.
"""

import math
from typing import ClassVar, Literal, TypeVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["AnchorOptions", "ClipOptions", "ClippedTokenRatio", "Ppo", "PpoOptions"]


class AnchorOptions(EstimatorOptions):
    """Adds the choice of what a ratio is against."""

    anchor: Literal["behavior", "old"] = "behavior"
    """Denominator of the ratio: "behavior" is mu as recorded; "old" is pi_old, which has to be recomputed."""

    @property
    def part(self) -> Part:
        """What the ratio accounts for."""
        return Part.STALENESS if self.splits_ratio else Part.TOTAL

    @property
    @override
    def splits_ratio(self) -> bool:
        """Whether the ratio is against pi_old."""
        return self.anchor == "old"


class ClipOptions(AnchorOptions):
    """Constants of a clipped token ratio."""

    epsilon_low: float = Field(0.2, ge=0)
    """Lower clip margin."""
    epsilon_high: float = Field(0.2, ge=0)
    """Upper clip margin."""
    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip: largest ratio of a token with A < 0. None has none; 3.0 is a common choice."""


ClipOptionsT = TypeVar("ClipOptionsT", bound=ClipOptions)


class ClippedTokenRatio(Estimator[ClipOptionsT]):
    """Clipped ratio of each token [n]; presets differ in constants, advantages and aggregation."""

    formula: ClassVar[str] = "r_t where the clip is not active, else 0;  r_t = pi/anchor per token"

    @override
    def weigh(self, view: View) -> Weighed:
        """Token ratio and clip."""
        o = self.options
        log_ratio = view.log_ratio(o.part)
        dual = None if o.clip_ratio_c is None else math.log(o.clip_ratio_c)
        bounds = view.clip_bounds(*masks.log_margins(o.epsilon_low, o.epsilon_high), dual)
        return Weighed(view.drop_outside(kernel.identity(log_ratio, view.out), log_ratio.values, bounds))


class PpoOptions(ClipOptions):
    """Constants of `ppo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""


class Ppo(ClippedTokenRatio[PpoOptions]):
    """Clipped ratio of each token [n]."""

    name: ClassVar[str] = "ppo"
    options_class: ClassVar[type[EstimatorOptions]] = PpoOptions
    reference: ClassVar[str] = "Schulman et al., PPO, arXiv:1707.06347"
