"""RLOO: REINFORCE with the mean reward of the other completions as baseline.

    coefficient = 1
    A_i = R_i - mean of R_j over the other members of the group

arXiv:2402.14740. The ratio is against nothing: assumes on-policy data. A completion is one action, so its tokens are summed.
With one completion per prompt there is no other one: refused.
"""

from typing import ClassVar

from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Rloo", "RlooOptions"]


class RlooOptions(EstimatorOptions):
    """Constants of `rloo`."""

    advantage: AdvantageKind = "leave_one_out"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_sum"
    """What one token counts in the loss of the batch."""


class Rloo(Estimator[RlooOptions]):
    """Coefficient 1 for every token [n]."""

    name: ClassVar[str] = "rloo"
    options_class: ClassVar[type[EstimatorOptions]] = RlooOptions
    formula: ClassVar[str] = "1, with the mean of the other members as baseline"
    reference: ClassVar[str] = "Ahmadian et al., Back to Basics, arXiv:2402.14740"

    @override
    def weigh(self, view: View) -> Weighed:
        """One for each sequence."""
        return Weighed(kernel.one(view.advantages))
