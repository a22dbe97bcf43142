"""An indicator: tokens or sequences whose divergence from the sampler is within a bound, all with weight 1.

    coefficient_t = 1 where D(mu, pi) <= delta, else 0
    D for "this token or any other", p = pi(y_t), p_mu = mu(y_t):
        total_variation  |p - p_mu|
        kl               p_mu log(p_mu/p) + (1 - p_mu) log((1 - p_mu)/(1 - p))
        chi_square       (p - p_mu)^2 / (p (1 - p))
    level = "sequence": the mean of D over the tokens decides for all of them

The plainest rejection rule, for comparison with the weighted ones. There is no paper whose delta could be the default.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import masks
from hetero_rl.estimators.stages.edge import Part, Weight, bounded_exp
from hetero_rl.estimators.view import View, Weighed

__all__ = ["DivergenceMask", "DivergenceMaskOptions"]


class DivergenceMaskOptions(EstimatorOptions):
    """Constants of `divergence_mask`."""

    delta: float = Field(gt=0)
    """Largest divergence that is kept."""
    divergence: Literal["total_variation", "kl", "chi_square"] = "total_variation"
    """D."""
    level: Literal["token", "sequence"] = "token"
    """What is kept or dropped as one."""


class DivergenceMask(Estimator[DivergenceMaskOptions]):
    """1 or 0 for each token [n] or sequence [s]."""

    name: ClassVar[str] = "divergence_mask"
    options_class: ClassVar[type[EstimatorOptions]] = DivergenceMaskOptions
    formula: ClassVar[str] = "1 where D(mu, pi) <= delta, else 0"
    reference: ClassVar[str] = "indicator of an f-divergence ball; Csiszar, 1967"
    example_options: ClassVar[dict[str, Any]] = {"delta": 0.2}

    @override
    def weigh(self, view: View) -> Weighed:
        """Divergence and bound."""
        o = self.options
        log_ratio = view.log_ratio(Part.TOTAL)
        ratio = bounded_exp(log_ratio, view.out)
        if o.divergence == "kl":
            divergence = masks.signed_binary_kl(
                view.behavior_log_probs, log_ratio.values, ratio, (view.column(), view.column())
            ).abs_()
        elif o.divergence == "chi_square":
            divergence = masks.binary_chi_square(view.behavior_log_probs, ratio)
        else:
            divergence = masks.probability_fall(view.behavior_log_probs, ratio, view.column()).abs_()
        if o.level == "sequence":
            if view.usable is not None:
                divergence = torch.where(view.usable > 0, divergence, 0.0)
            divergence = view.segment_sum(divergence) / view.token_counts.clamp(min=1)
        out = view.out if o.level == "token" else None
        return Weighed(Weight(masks.window(divergence, None, o.delta, out), Part(0)))
