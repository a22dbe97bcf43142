"""GRPO: the clipped token ratio with group-normalised advantages.

    r_t = pi(y_t)/mu(y_t)
    coefficient_t = r_t, and 0 where min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) is flat

arXiv:2402.03300. The ratio is against the recorded log-probabilities. Assumes that pi stays close to mu token by token; the
product over a sequence is not corrected.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Grpo", "GrpoOptions"]


class GrpoOptions(EstimatorOptions):
    """Constants of `grpo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    epsilon_low: float = Field(0.2, ge=0)
    """Lower clip margin."""
    epsilon_high: float = Field(0.2, ge=0)
    """Upper clip margin."""


class Grpo(Estimator[GrpoOptions]):
    """Clipped ratio of each token [n]."""

    name: ClassVar[str] = "grpo"
    options_class: ClassVar[type[EstimatorOptions]] = GrpoOptions
    formula: ClassVar[str] = "r_t where the clip is not active, else 0;  r_t = pi/mu per token"
    reference: ClassVar[str] = "Shao et al., DeepSeekMath, arXiv:2402.03300"

    @override
    def weigh(self, view: View) -> Weighed:
        """Token ratio and clip."""
        ratio = kernel.identity(view.total)
        keep = masks.clip_keep(
            ratio.values, view.token_advantages, self.options.epsilon_low, self.options.epsilon_high
        )
        return Weighed(ratio, keep)
