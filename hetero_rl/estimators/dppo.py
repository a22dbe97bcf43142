"""DPPO: a mask on how far a token's probability has moved, in place of a clip on its ratio.

    coefficient_t = min(r_t, clip_ratio_c), and 0 where the probability has already moved too far in the direction of A
    dppo_tv:  |p - p_mu| > delta            with p = pi(y_t), p_mu = mu(y_t), r_t = p/p_mu
    dppo_kl:  KL between "this token" and "any other" under mu and pi > delta

arXiv:2602.04879. A ratio of 2 says little about a token of probability 1e-6 and much about one of 0.4; the divergence knows the
difference. The anchor is mu as recorded. clip_ratio_c = 10 is the code default of the authors.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["DppoKl", "DppoKlOptions", "DppoOptions", "DppoTv", "DppoTvOptions"]


class DppoOptions(EstimatorOptions):
    """Constants of both."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    clip_ratio_c: float = Field(10.0, gt=0)
    """Largest weight of a token."""


class DppoTvOptions(DppoOptions):
    """Constants of `dppo_tv`."""

    delta: float = Field(0.2, ge=0)
    """Largest change of a token's probability."""


class DppoKlOptions(DppoOptions):
    """Constants of `dppo_kl`."""

    delta: float = Field(0.05, ge=0)
    """Largest binary KL of a token, in nats."""


class DppoTv(Estimator[DppoTvOptions]):
    """Capped ratio of each token [n], masked by the change of its probability."""

    name: ClassVar[str] = "dppo_tv"
    options_class: ClassVar[type[EstimatorOptions]] = DppoTvOptions
    formula: ClassVar[str] = "min(pi/mu, clip_ratio_c), and 0 where |pi - mu| > delta in the direction of A"
    reference: ClassVar[str] = "Qi et al., DPPO, arXiv:2602.04879"

    @override
    def weigh(self, view: View) -> Weighed:
        """Capped ratio and divergence mask."""
        o = self.options
        log_ratio = view.log_ratio(Part.TOTAL)
        ratio = kernel.identity(log_ratio, view.out)
        fallen = masks.probability_fall(view.behavior_log_probs, ratio.values, view.column())
        # A fall is a rise of -1 times its size.
        low, high = view.clip_bounds(-o.delta, o.delta)
        return Weighed(view.drop_outside(ratio, fallen, (-high, -low), cap=o.clip_ratio_c))


class DppoKl(Estimator[DppoKlOptions]):
    """Capped ratio of each token [n], masked by its binary KL."""

    name: ClassVar[str] = "dppo_kl"
    options_class: ClassVar[type[EstimatorOptions]] = DppoKlOptions
    formula: ClassVar[str] = (
        "min(pi/mu, clip_ratio_c), and 0 where the binary KL > delta in the direction of A"
    )
    reference: ClassVar[str] = "Qi et al., DPPO, arXiv:2602.04879"

    @override
    def weigh(self, view: View) -> Weighed:
        """Capped ratio and divergence mask."""
        o = self.options
        log_ratio = view.log_ratio(Part.TOTAL)
        ratio = kernel.identity(log_ratio, view.out)
        bounds = view.clip_bounds(-o.delta, o.delta)
        masks.drop_beyond_binary_kl(
            ratio.values,
            view.behavior_log_probs,
            log_ratio.values,
            bounds,
            view.lengths,
            o.clip_ratio_c,
            (view.column(), view.column()),
        )
        return Weighed(ratio)
