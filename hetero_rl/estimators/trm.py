"""TRM: trust region masking of whole sequences by their worst token.

    coefficient_t = r_t where max_t k(r_t) <= delta, else 0 for the whole sequence;  r_t = pi(y_t)/mu(y_t)
    k3 = r - 1 - log r,  k2 = (log r)^2 / 2

arXiv:2512.23075: the error of the surrogate is bounded by the largest divergence of a token, not by the mean. The paper
gives no delta for these sample estimates, so it has to be chosen.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, level, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Trm", "TrmOptions"]


class TrmOptions(EstimatorOptions):
    """Constants of `trm`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    delta: float = Field(gt=0)
    """Largest divergence of a token in a kept sequence, in nats."""
    metric: Literal["k2", "k3"] = "k3"
    """Estimate of a token's divergence."""


class Trm(Estimator[TrmOptions]):
    """Ratio of each token [n] of the kept sequences."""

    name: ClassVar[str] = "trm"
    options_class: ClassVar[type[EstimatorOptions]] = TrmOptions
    formula: ClassVar[str] = "r_t where max_t k3(r_t) <= delta, else 0;  r_t = pi/mu"
    reference: ClassVar[str] = "Trust Region Masking, arXiv:2512.23075"
    example_options: ClassVar[dict[str, Any]] = {"delta": 0.5}

    @override
    def weigh(self, view: View) -> Weighed:
        """Ratios, and the largest divergence of each sequence."""
        o = self.options
        log_ratio = view.log_ratio(Part.TOTAL)
        # Both divergences are convex and least at 0: the largest is that of the smallest or of the largest log-ratio.
        ends = torch.stack(
            [
                level.segment_min(log_ratio.values, view.lengths),
                level.segment_max(log_ratio.values, view.lengths),
            ]
        )
        divergences = ends.exp() - 1 - ends if o.metric == "k3" else ends.square() / 2
        keep = masks.window(divergences.amax(0), None, o.delta)
        return Weighed(kernel.identity(log_ratio, view.out), keep)
