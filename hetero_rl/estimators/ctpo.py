"""CTPO: the ratio of the whole prefix, with a clip that widens with the square root of its length.

    c_t = prod_(s<=t) pi(y_s)/anchor(y_s)
    coefficient_t = c_t, and 0 where A > 0 and log c_t > epsilon_high sqrt(t)
                         or where A < 0 and (log c_t < -epsilon_low sqrt(t) or log c_t > epsilon_dual sqrt(t))

arXiv:2605.07331; margins are on the log of the prefix ratio per square root of its tokens, because independent log-ratios add up
like a random walk. The anchor is mu as recorded, or pi_old.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import AnchorOptions
from hetero_rl.estimators.stages import kernel, level, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Ctpo", "CtpoOptions"]


class CtpoOptions(AnchorOptions):
    """Constants of `ctpo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    epsilon_low: float = Field(0.025, ge=0)
    """Lower margin; acts where A < 0."""
    epsilon_high: float = Field(0.05, ge=0)
    """Upper margin; acts where A > 0."""
    epsilon_dual: float = Field(0.05, ge=0)
    """Upper margin where A < 0."""


class Ctpo(Estimator[CtpoOptions]):
    """Clipped prefix ratio of each token [n]."""

    name: ClassVar[str] = "ctpo"
    options_class: ClassVar[type[EstimatorOptions]] = CtpoOptions
    formula: ClassVar[str] = "c_t where its clip is not active, else 0;  c_t = prod_(s<=t) pi/anchor"
    reference: ClassVar[str] = "CTPO, arXiv:2605.07331"

    @override
    def weigh(self, view: View) -> Weighed:
        """Prefix ratio, and the clip per square root of the position."""
        o = self.options
        log_prefix = level.prefix_product(view.log_ratio(o.part), view.lengths, view.column())
        bounds = view.clip_bounds(-o.epsilon_low, o.epsilon_high, o.epsilon_dual)
        ratio = kernel.identity(log_prefix, view.out)
        masks.drop_outside_per_root(ratio.values, log_prefix.values, bounds, view.lengths)
        return Weighed(ratio)
