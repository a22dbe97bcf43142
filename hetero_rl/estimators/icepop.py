"""IcePop, also called masked importance sampling: a token's weight inside a window, nothing outside.

    coefficient_t = w_t where ratio_low <= w_t <= ratio_high, else 0
    w_t from pi/mu (parts = "total"), or from pi_old/mu and times u_t = pi/pi_old with PPO's clip (parts = "split")

Ring-1T report, 2025, window 0.5 to 5. Masked tokens stay in the denominator of the loss.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.split import SplitOptions, SplitRatio
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Icepop", "IcepopOptions"]


class IcepopOptions(SplitOptions):
    """Constants of `icepop`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    ratio_low: float = Field(0.5, ge=0)
    """Smallest ratio that is kept."""
    ratio_high: float = Field(5.0, gt=0)
    """Largest ratio that is kept."""


class Icepop(SplitRatio[IcepopOptions]):
    """Windowed ratio of each token [n]."""

    name: ClassVar[str] = "icepop"
    options_class: ClassVar[type[EstimatorOptions]] = IcepopOptions
    formula: ClassVar[str] = "w_t where ratio_low <= w_t <= ratio_high, else 0"
    reference: ClassVar[str] = "Ring-1T, Every Step Evolves, arXiv:2510.18855"

    @override
    def correct(self, view: View, part: Part) -> Weighed:
        """Ratio and window."""
        log_ratio = view.log_ratio(part)
        bounds = view.log_bounds(self.options.ratio_low, self.options.ratio_high)
        return Weighed(view.drop_outside(kernel.identity(log_ratio, view.out), log_ratio.values, bounds))
