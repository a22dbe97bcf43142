"""Plain importance sampling of whole sequences.

    W = prod_t pi(y_t)/mu(y_t)
    coefficient = W

The unbiased estimator, and the one whose variance every other method trades away: it grows exponentially with
KL(pi || mu) of the sequence. The ratio is against the recorded log-probabilities. log W is held within +-20 before `exp`.
"""

from typing import ClassVar

from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["SeqIs", "SeqIsOptions"]


class SeqIsOptions(EstimatorOptions):
    """Constants of `seq_is`."""

    aggregation: AggregationKind = "sequence_mean_token_sum"
    """What one token counts in the loss of the batch."""


class SeqIs(Estimator[SeqIsOptions]):
    """W of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "seq_is"
    options_class: ClassVar[type[EstimatorOptions]] = SeqIsOptions
    formula: ClassVar[str] = "W = prod_t pi/mu"
    reference: ClassVar[str] = "Precup, Sutton, Singh, Eligibility traces for off-policy evaluation, 2000"

    @override
    def weigh(self, view: View) -> Weighed:
        """Sequence product."""
        return Weighed(kernel.identity(view.product()), log_weight=view.product())
