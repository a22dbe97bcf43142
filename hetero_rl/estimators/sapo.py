"""SAPO: a smooth gate in place of the clip.

    r_t = pi(y_t)/anchor(y_t),  p = sigmoid(tau (r_t - 1))
    coefficient_t = 4 p (1 - p) r_t          tau = tau_positive where A > 0, tau_negative where A <= 0

arXiv:2511.20347. This is the gradient of the paper's objective (4/tau) sigmoid(tau (r - 1)), and is 1 at r = 1. The anchor is
mu as recorded, or pi_old. Tokens are gated one by one.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import AnchorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Sapo", "SapoOptions"]


class SapoOptions(AnchorOptions):
    """Constants of `sapo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    tau_positive: float = Field(1.0, gt=0)
    """Temperature where A > 0."""
    tau_negative: float = Field(1.05, gt=0)
    """Temperature where A <= 0."""


class Sapo(Estimator[SapoOptions]):
    """Gated ratio of each token [n]."""

    name: ClassVar[str] = "sapo"
    options_class: ClassVar[type[EstimatorOptions]] = SapoOptions
    formula: ClassVar[str] = (
        "4 p (1 - p) r_t;  p = sigmoid(tau (r_t - 1)), r_t = pi/anchor, tau by the sign of A"
    )
    reference: ClassVar[str] = "SAPO, arXiv:2511.20347"

    @override
    def weigh(self, view: View) -> Weighed:
        """Soft gate on each token's ratio."""
        o = self.options
        half_tau = masks.choose(
            view.advantages > 0, o.tau_positive / 2, o.tau_negative / 2, view.log_probs.dtype
        )
        out = (view.out, view.column())
        return Weighed(kernel.soft_gate(view.log_ratio(o.part), half_tau, view.lengths, out))
