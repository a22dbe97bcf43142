"""REINFORCE: no correction for the difference between the sampler and the policy.

    coefficient = 1

Williams, 1992. The ratio is against nothing: the method assumes that the data is on-policy, and is the baseline that shows
what a correction is worth.
"""

from typing import ClassVar

from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Reinforce", "ReinforceOptions"]


class ReinforceOptions(EstimatorOptions):
    """Constants of `reinforce`."""


class Reinforce(Estimator[ReinforceOptions]):
    """Coefficient 1 for every token [n]."""

    name: ClassVar[str] = "reinforce"
    options_class: ClassVar[type[EstimatorOptions]] = ReinforceOptions
    formula: ClassVar[str] = "1"
    reference: ClassVar[str] = "Williams, Simple statistical gradient-following algorithms, 1992"

    @override
    def weigh(self, view: View) -> Weighed:
        """One for each sequence."""
        return Weighed(kernel.one(view.advantages))
