"""CISPO: the token ratio held within bounds, and no token ever without gradient.

    coefficient_t = r_t held between ratio_low and ratio_high;  r_t = pi(y_t)/anchor(y_t)

MiniMax-M1, arXiv:2506.13585. Bounds are on the ratio itself. The report switches the lower bound off and names no upper one;
5 is the cap of the scaling study arXiv:2510.13786. The anchor is mu as recorded, or pi_old; against pi_old with one
update per batch this is plain REINFORCE.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import AnchorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Cispo", "CispoOptions"]


class CispoOptions(AnchorOptions):
    """Constants of `cispo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    ratio_low: float = Field(0.0, ge=0)
    """Smallest coefficient."""
    ratio_high: float = Field(5.0, gt=0)
    """Largest coefficient."""


class Cispo(Estimator[CispoOptions]):
    """Bounded ratio of each token [n]."""

    name: ClassVar[str] = "cispo"
    options_class: ClassVar[type[EstimatorOptions]] = CispoOptions
    formula: ClassVar[str] = "clip(r_t, ratio_low, ratio_high);  r_t = pi/anchor per token"
    reference: ClassVar[str] = "MiniMax-M1, arXiv:2506.13585"

    @override
    def weigh(self, view: View) -> Weighed:
        """Token ratio, truncated."""
        o = self.options
        return Weighed(kernel.truncate(view.log_ratio(o.part), o.ratio_low, o.ratio_high, view.out))
