"""q-paths: a weight between 1 and the full sequence weight.

    W = prod_t pi(y_t)/mu(y_t)
    coefficient = [(1 - beta) + beta W^(1 - q)]^(1 / (1 - q))

arXiv:2012.07823, divided by mu. beta = 0 ignores the ratio, beta = 1 is W. q = 1 is the geometric path W^beta; q = 0 the mixture
(1 - beta) + beta W; q > 1 is bounded by (1 - beta)^(-1/(q - 1)); q < 1 never falls below (1 - beta)^(1/(1 - q)). On-policy it is 1.
Used here as a weight in one step, without the annealing it was made for, so beta and q have no published values.
"""

from typing import Any, ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.view import View, Weighed

__all__ = ["QPath", "QPathOptions"]


class QPathOptions(EstimatorOptions):
    """Constants of `q_path`."""

    beta: float = Field(ge=0, le=1)
    """How much of the ratio counts."""
    q: float = Field(ge=-10, le=10)
    """Order of the path."""


class QPath(Estimator[QPathOptions]):
    """Weight of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "q_path"
    options_class: ClassVar[type[EstimatorOptions]] = QPathOptions
    formula: ClassVar[str] = "[(1 - beta) + beta W^(1-q)]^(1/(1-q));  W = prod_t pi/mu"
    reference: ClassVar[str] = "Masrani et al., q-Paths, arXiv:2012.07823"
    example_options: ClassVar[dict[str, Any]] = {"beta": 0.5, "q": 1.5}

    @override
    def weigh(self, view: View) -> Weighed:
        """Sequence product and q-path."""
        weight = kernel.q_path(view.product(), self.options.beta, self.options.q)
        return Weighed(weight, log_weight=view.product())
