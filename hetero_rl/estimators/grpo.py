"""GRPO: the clipped token ratio with group-normalised advantages.

    r_t = pi(y_t)/mu(y_t)
    coefficient_t = r_t, and 0 where min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) is flat
    A = (R - mean of the group) / (standard deviation of the group + std_epsilon)

arXiv:2402.03300. The clip and its options are those of `ppo`. Assumes that pi stays close to the anchor token by token; the
product over a sequence is not corrected. Sequences of any length weigh the same.
"""

from typing import ClassVar

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.ppo import ClipOptions, ClippedTokenRatio
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind

__all__ = ["Grpo", "GrpoOptions"]


class GrpoOptions(ClipOptions):
    """Constants of `grpo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""


class Grpo(ClippedTokenRatio[GrpoOptions]):
    """Clipped ratio of each token [n]."""

    name: ClassVar[str] = "grpo"
    options_class: ClassVar[type[EstimatorOptions]] = GrpoOptions
    reference: ClassVar[str] = "Shao et al., DeepSeekMath, arXiv:2402.03300"
