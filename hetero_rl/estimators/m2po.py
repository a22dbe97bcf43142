"""M2PO: the token ratio, without the tokens that push the second moment of the log-ratio over its bound.

    coefficient_t = r_t, and 0 for the tokens with the largest (log r_t)^2, dropped until the mean square of the rest is below tau
    r_t = pi(y_t)/mu(y_t)

arXiv:2510.01161; tau = 0.04. Which tokens are dropped depends on the whole batch under the current policy, so the limit is found
once per step, in one extra pass without gradients. Tokens that tie with the first one dropped are dropped with it.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions, Needs
from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.stages.groups import Groups
from hetero_rl.estimators.view import View, Weighed, views

__all__ = ["M2po", "M2poOptions"]


class M2poOptions(EstimatorOptions):
    """Constants of `m2po`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    tau: float = Field(0.04, gt=0)
    """Bound on the mean square of the log-ratios that are kept."""


class M2po(Estimator[M2poOptions]):
    """Ratio of each token [n] below the batch's limit."""

    name: ClassVar[str] = "m2po"
    method_needs: ClassVar[Needs] = Needs.CURRENT_POLICY
    options_class: ClassVar[type[EstimatorOptions]] = M2poOptions
    formula: ClassVar[str] = "r_t where (log r_t)^2 is below the batch's limit, else 0;  r_t = pi/mu"
    reference: ClassVar[str] = "Zheng et al., M2PO, arXiv:2510.01161"

    @override
    def couple(self, prepared: PreparedBatch, groups: Groups, log_probs: Tensor | None) -> PreparedBatch:
        """Adds the limit."""
        if log_probs is None:
            return prepared
        tau = self.options.tau
        limit = math.inf
        if masks.second_moment(_log_ratios(prepared, log_probs)) >= tau:
            limit = masks.second_moment_limit(_log_ratios(prepared, log_probs), tau)
        largest = torch.tensor(limit, dtype=log_probs.dtype, device=log_probs.device)
        if math.isfinite(limit):
            # Strictly below, in the data type that is compared.
            largest = torch.nextafter(largest, torch.zeros_like(largest))
        constants = largest.expand(prepared.advantages.shape[0])
        return dataclasses.replace(prepared, sequence_constants=constants)

    @override
    def weigh(self, view: View) -> Weighed:
        """Ratio and limit."""
        log_ratio = view.log_ratio(Part.TOTAL)
        weight = kernel.identity(log_ratio, view.out)
        limit = view.constants[0]
        if not bool(limit.isfinite()):
            return Weighed(weight)
        squares = torch.square(log_ratio.values, out=view.column())
        return Weighed(weight, masks.window(squares, None, limit, out=squares))


def _log_ratios(prepared: PreparedBatch, log_probs: Tensor) -> Iterator[Tensor]:
    return (view.log_ratio(Part.TOTAL).values for view in views(prepared, log_probs))
