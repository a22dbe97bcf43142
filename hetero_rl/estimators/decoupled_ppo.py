"""Decoupled PPO: one weight from the sampler to a proximal policy, PPO's clip from there on.

    coefficient_t = b_t * u_t with PPO's clip on u_t;  b_t = pi_prox(y_t)/mu(y_t), u_t = pi(y_t)/pi_prox(y_t)

AReaL, arXiv:2505.24298. proximal = "recomputed" takes pi_old as the proximal policy. proximal = "loglinear" (A-3PO,
arXiv:2512.06547) needs no recomputation: log pi_prox = log mu + (lag - 1)/lag * (log pi - log mu), from each token's recorded lag; at
lag 0 the proximal policy is mu. b_t * u_t is always pi/mu: nothing is counted twice.
"""

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.split import with_clipped_drift
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import LogRatio, Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["DecoupledPpo", "DecoupledPpoOptions"]


class DecoupledPpoOptions(EstimatorOptions):
    """Constants of `decoupled_ppo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    proximal: Literal["recomputed", "loglinear"] = "recomputed"
    """Where the proximal policy comes from."""
    epsilon_low: float = Field(0.2, ge=0)
    """Lower clip margin on pi/pi_prox."""
    epsilon_high: float = Field(0.2, ge=0)
    """Upper clip margin on pi/pi_prox."""
    behavior_weight_cap: float | None = Field(None, gt=0)
    """Largest pi_prox/mu; None has none."""

    @property
    @override
    def splits_ratio(self) -> bool:
        """Whether the proximal policy is pi_old."""
        return self.proximal == "recomputed"


class DecoupledPpo(Estimator[DecoupledPpoOptions]):
    """Weight times clipped drift of each token [n]."""

    name: ClassVar[str] = "decoupled_ppo"
    options_class: ClassVar[type[EstimatorOptions]] = DecoupledPpoOptions
    formula: ClassVar[str] = "pi_prox/mu * pi/pi_prox, and 0 where PPO's clip on pi/pi_prox is active"
    reference: ClassVar[str] = "Fu et al., AReaL, arXiv:2505.24298"

    @override
    def weigh(self, view: View) -> Weighed:
        """Weight of the sampler, times clipped drift."""
        o = self.options
        chip, drift = self._split(view)
        corrected = Weighed(kernel.truncate(chip, None, o.behavior_weight_cap, view.out))
        return with_clipped_drift(view, corrected, drift, masks.log_margins(o.epsilon_low, o.epsilon_high))

    def _split(self, view: View) -> tuple[LogRatio, LogRatio]:
        if self.options.proximal == "recomputed":
            return view.log_ratio(Part.CHIP), view.log_ratio(Part.STALENESS)
        if view.token_lags is None:
            raise ValueError('token_lags is None; proximal = "loglinear" reads the lag of each token')
        lag = view.token_lags.to(view.log_probs.dtype)
        total = view.log_ratio(Part.TOTAL).values
        chip = total * ((lag - 1) / lag.clamp(min=1)).clamp_(min=0)
        return LogRatio(chip, Part.CHIP), LogRatio(total - chip, Part.STALENESS)
