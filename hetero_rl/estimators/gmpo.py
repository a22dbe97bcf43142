"""GMPO: the geometric mean of token ratios that are clipped one by one.

    l_t = log pi(y_t)/anchor(y_t), held below epsilon where A > 0 and above -epsilon where A < 0
    coefficient_t = exp(mean_t l_t), and 0 for the tokens that were held

arXiv:2507.20673. Bounds are on the log-ratio. The anchor is mu as recorded, or pi_old.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import AnchorOptions
from hetero_rl.estimators.stages import kernel, level
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.stages.edge import LogRatio, Weight
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Gmpo", "GmpoOptions"]


class GmpoOptions(AnchorOptions):
    """Constants of `gmpo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    epsilon_low: float = Field(0.4, ge=0)
    """Largest fall of the log-ratio of a token with A < 0."""
    epsilon_high: float = Field(0.4, ge=0)
    """Largest rise of the log-ratio of a token with A > 0."""


class Gmpo(Estimator[GmpoOptions]):
    """Geometric mean of each sequence, without gradient for its clipped tokens [n]."""

    name: ClassVar[str] = "gmpo"
    options_class: ClassVar[type[EstimatorOptions]] = GmpoOptions
    formula: ClassVar[str] = "exp(mean_t l_t) where l_t is not clipped, else 0;  l_t = log pi/anchor"
    reference: ClassVar[str] = "Zhao et al., Geometric-Mean Policy Optimization, arXiv:2507.20673"

    @override
    def weigh(self, view: View) -> Weighed:
        """Clip of each log-ratio, then their mean."""
        o = self.options
        log_ratio = view.log_ratio(o.part)
        bounds = view.clip_bounds(-o.epsilon_low, o.epsilon_high)
        sums = level.held_sums(log_ratio.values, *bounds, view.lengths)
        log_s = LogRatio(sums / view.token_counts.clamp(min=1), log_ratio.part)
        mean = kernel.identity(log_s)
        return Weighed(
            Weight(view.inside(log_ratio.values, bounds, mean.values), mean.part), log_weight=log_s
        )
