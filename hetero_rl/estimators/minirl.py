"""MiniRL: the token ratio to the sampler as weight, and a clip on the policy's own drift as mask.

    coefficient_t = min(pi(y_t)/mu(y_t), ratio_cap), and 0 where PPO's clip on u_t is active
    u_t = pi(y_t)/anchor(y_t)

arXiv:2512.01374, equation 7. The weight is always against the recorded log-probabilities. The mask reads pi_old where it is
recomputed (anchor = "old"), else mu. Tokens are summed: the paper finds that dividing by the length is worse.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import AnchorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Minirl", "MinirlOptions"]


class MinirlOptions(AnchorOptions):
    """Constants of `minirl`."""

    aggregation: AggregationKind = "sequence_mean_token_sum"
    """What one token counts in the loss of the batch."""
    epsilon_low: float = Field(0.2, ge=0)
    """Lower clip margin of the mask."""
    epsilon_high: float = Field(0.27, ge=0)
    """Upper clip margin of the mask."""
    ratio_cap: float = Field(5.0, gt=0)
    """Largest weight of a token."""


class Minirl(Estimator[MinirlOptions]):
    """Capped ratio of each token [n], masked by drift."""

    name: ClassVar[str] = "minirl"
    options_class: ClassVar[type[EstimatorOptions]] = MinirlOptions
    formula: ClassVar[str] = "min(pi/mu, ratio_cap) where PPO's clip on pi/anchor is not active, else 0"
    reference: ClassVar[str] = "Zheng et al., Stabilizing RL with LLMs, arXiv:2512.01374"

    @override
    def weigh(self, view: View) -> Weighed:
        """Capped ratio and clip mask."""
        o = self.options
        bounds = view.clip_bounds(*masks.log_margins(o.epsilon_low, o.epsilon_high))
        ratio = kernel.identity(view.log_ratio(Part.TOTAL), view.out)
        return Weighed(view.drop_outside(ratio, view.log_ratio(o.part).values, bounds, cap=o.ratio_cap))
