"""Dr. GRPO: GRPO without the two normalisers that bias it.

    coefficient_t = r_t where the clip is not active, else 0
    A = R - mean of the group;  every token counts 1 / (sequences * max_new_tokens)

arXiv:2503.20783. No division by the standard deviation, no division by the own length: a long wrong answer weighs as much
per token as a short one. The clip and its options are those of `ppo`.
"""

from typing import ClassVar

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.ppo import ClipOptions, ClippedTokenRatio
from hetero_rl.estimators.stages.aggregation import AggregationKind

__all__ = ["DrGrpo", "DrGrpoOptions"]


class DrGrpoOptions(ClipOptions):
    """Constants of `dr_grpo`."""

    aggregation: AggregationKind = "constant"
    """What one token counts in the loss of the batch."""


class DrGrpo(ClippedTokenRatio[DrGrpoOptions]):
    """Clipped ratio of each token [n]."""

    name: ClassVar[str] = "dr_grpo"
    options_class: ClassVar[type[EstimatorOptions]] = DrGrpoOptions
    reference: ClassVar[str] = "Liu et al., Understanding R1-Zero-like training, arXiv:2503.20783"
