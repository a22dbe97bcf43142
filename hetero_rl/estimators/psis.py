"""Pareto smoothed importance sampling over the batch.

    W = prod_t pi(y_t)/mu(y_t)
    coefficient = W, the largest of the batch replaced by the expected order statistics of a generalised Pareto fit

arXiv:1507.02646; Vehtari et al., JMLR 25, 2024. The fit needs at least 25 sequences with a weight; fewer, or a tail without
spread as on-policy data has, leave the weights as they are. The largest weight is never exceeded. The fit reads the whole batch
under the current policy: one extra pass without gradients. The shape k-hat of the tail is reported as `k_hat`.
"""

import dataclasses
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions, Needs
from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages import kernel, normalise
from hetero_rl.estimators.stages.edge import LogRatio, Part
from hetero_rl.estimators.stages.groups import Groups
from hetero_rl.estimators.stages.pareto import pareto_smooth
from hetero_rl.estimators.view import View, Weighed, log_weights

__all__ = ["Psis", "PsisOptions"]


class PsisOptions(EstimatorOptions):
    """Constants of `psis`."""

    normalise: Literal["none", "batch"] = "none"
    """Whether weights are divided by their mean over the batch."""


class Psis(Estimator[PsisOptions]):
    """Smoothed weight of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "psis"
    method_needs: ClassVar[Needs] = Needs.CURRENT_POLICY
    options_class: ClassVar[type[EstimatorOptions]] = PsisOptions
    formula: ClassVar[str] = "W with its largest values Pareto smoothed;  W = prod_t pi/mu"
    reference: ClassVar[str] = "Vehtari et al., Pareto Smoothed Importance Sampling, arXiv:1507.02646"

    @override
    def couple(self, prepared: PreparedBatch, groups: Groups, log_probs: Tensor | None) -> PreparedBatch:
        """Adds the log of each sequence's weight."""
        if log_probs is None:
            return prepared
        smoothed = pareto_smooth(log_weights(prepared, log_probs))
        log_w = smoothed.log_weights
        if self.options.normalise == "batch":
            log_w = torch.sub(log_w, normalise.batch_mean_log(log_w))
        facts = prepared.facts | {"k_hat": smoothed.k_hat}
        return dataclasses.replace(prepared, sequence_constants=log_w, facts=facts)

    @override
    def weigh(self, view: View) -> Weighed:
        """The weight found for the whole batch."""
        log_w = LogRatio(view.constants, Part.TOTAL)
        return Weighed(kernel.identity(log_w), log_weight=log_w)
