"""GSPO: the clipped geometric mean of a sequence's token ratios.

    s = (prod_t pi(y_t)/anchor(y_t))^(1/T)
    coefficient = s, and 0 where min(s A, clip(s, 1 - epsilon_low, 1 + epsilon_high) A) is flat

arXiv:2507.18071, section 5.1 for the margins. The anchor is mu as recorded, or pi_old. Assumes that the mean log-ratio per
token is what matters: s is not an importance weight of the sequence, and its margins are two to three orders of magnitude
below a token clip's.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import AnchorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Gspo", "GspoOptions"]


class GspoOptions(AnchorOptions):
    """Constants of `gspo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    epsilon_low: float = Field(3e-4, ge=0)
    """Lower clip margin."""
    epsilon_high: float = Field(4e-4, ge=0)
    """Upper clip margin."""


class Gspo(Estimator[GspoOptions]):
    """Clipped geometric mean ratio of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "gspo"
    options_class: ClassVar[type[EstimatorOptions]] = GspoOptions
    formula: ClassVar[str] = "s where the clip is not active, else 0;  s = (prod_t pi/anchor)^(1/T)"
    reference: ClassVar[str] = "Zheng et al., Group Sequence Policy Optimization, arXiv:2507.18071"

    @override
    def weigh(self, view: View) -> Weighed:
        """Geometric mean ratio and clip."""
        o = self.options
        log_s = view.geometric_mean(o.part)
        ratio = kernel.identity(log_s)
        bounds = masks.clip_bounds(view.advantages, 1 - o.epsilon_low, 1 + o.epsilon_high)
        return Weighed(ratio, masks.window(ratio.values, *bounds), log_s)
