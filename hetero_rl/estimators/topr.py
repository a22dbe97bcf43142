"""TOPR: good sequences in full, bad ones by their truncated sequence weight.

    coefficient = 1 where A >= 0
    coefficient = W held between negative_ratio_low and negative_ratio_high where A < 0;  W = prod_t pi(y_t)/mu(y_t)

arXiv:2503.14286. The ratio is against the recorded log-probabilities. The paper's rewards are +1 and -1 without a baseline: with
such rewards set advantage = "none"; for rewards of 0 and 1 the group mean gives the signs.
"""

from typing import ClassVar

import torch
from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.stages.edge import Weight
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Topr", "ToprOptions"]


class ToprOptions(EstimatorOptions):
    """Constants of `topr`."""

    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    negative_ratio_low: float = Field(0.0, ge=0)
    """Smallest weight of a bad sequence; anything above 0 loses the method's stability."""
    negative_ratio_high: float = Field(1.0, gt=0)
    """Largest weight of a bad sequence."""


class Topr(Estimator[ToprOptions]):
    """Tapered weight of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "topr"
    options_class: ClassVar[type[EstimatorOptions]] = ToprOptions
    formula: ClassVar[str] = "1 where A >= 0, clip(W, 0, 1) where A < 0;  W = prod_t pi/mu"
    reference: ClassVar[str] = "Le Roux et al., Tapered Off-Policy REINFORCE, arXiv:2503.14286"

    @override
    def weigh(self, view: View) -> Weighed:
        """Sequence product, truncated, for bad sequences only."""
        o = self.options
        tapered = kernel.truncate(view.product(), o.negative_ratio_low, o.negative_ratio_high)
        values = torch.where(view.advantages < 0, tapered.values, 1.0)
        return Weighed(Weight(values, tapered.part), log_weight=view.product())
