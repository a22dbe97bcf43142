"""VCPO: the truncated sequence weight, and a learning rate that shrinks with the effective sample size.

    W = prod_t pi(y_t)/mu(y_t)
    coefficient = min(W, threshold)
    learning rate * sqrt(min(1, rho / base_ess_ratio));  rho = (sum W)^2 / (B sum W^2) over the B sequences of the step

arXiv:2602.17616. The ratio is against the recorded log-probabilities; no clip. The learning rate is the trainer's to scale, by
`learning_rate_scale`. The paper's optimal baseline needs the gradient norm of every sequence and is not part of this.
"""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Vcpo", "VcpoOptions"]


class VcpoOptions(EstimatorOptions):
    """Constants of `vcpo`."""

    threshold: float = Field(8.0, gt=0)
    """Largest weight of a sequence."""
    base_ess_ratio: float = Field(1.0, gt=0, le=1)
    """Effective share of the batch at which the learning rate is whole."""


class Vcpo(Estimator[VcpoOptions]):
    """Truncated weight of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "vcpo"
    options_class: ClassVar[type[EstimatorOptions]] = VcpoOptions
    formula: ClassVar[str] = "min(W, threshold);  W = prod_t pi/mu;  learning rate * sqrt(min(1, ESS/base))"
    reference: ClassVar[str] = "VCPO, arXiv:2602.17616"

    @override
    def weigh(self, view: View) -> Weighed:
        """Sequence product, truncated."""
        weight = kernel.truncate(view.product(), None, self.options.threshold)
        return Weighed(weight, log_weight=view.product())

    @override
    def learning_rate_scale(self, log_importance_ratio: Tensor) -> float:
        """Square root of the effective share of the step's sequences, at most 1."""
        log_w = log_importance_ratio.to(torch.float64)
        log_share = 2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0) - math.log(log_w.shape[0])
        return math.sqrt(min(1.0, math.exp(float(log_share)) / self.options.base_ess_ratio))
