"""VESPO: a gamma-shaped kernel of the true sequence weight, gentler on good sequences than on bad ones.

    W = prod_t pi(y_t)/mu(y_t)
    coefficient = phi(W) = W^c1 exp(c2 (1 - W))        (c1, c2) = (2, 3) where A >= 0, (3, 2) where A < 0

arXiv:2602.10693v3, equations 17 to 20 and appendix I. phi is evaluated as exp(c2 + c1 log W - c2 W), `exp` last, and is
detached: the gradient is E_mu[phi(W) A grad log pi]. phi(1) = 1, and phi peaks at W = c1/c2. W is against the recorded
log-probabilities, so it holds staleness and the difference between chips; nothing normalises it by length.
Assumes one advantage per sequence. phi vanishes when log W is far from 0: watch the effective sample size.

Two ablations of the paper are options, both worse there: `length_normalise` takes log W per token or per square root of
tokens; `symmetric` uses the constants of one sign for both.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.edge import LogRatio
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Vespo", "VespoOptions"]


class VespoOptions(EstimatorOptions):
    """Constants of `vespo`."""

    c1_positive: float = Field(2.0, gt=0)
    """Power of W where A >= 0."""
    c2_positive: float = Field(3.0, gt=0)
    """Decay in W where A >= 0."""
    c1_negative: float = Field(3.0, gt=0)
    """Power of W where A < 0."""
    c2_negative: float = Field(2.0, gt=0)
    """Decay in W where A < 0."""
    length_normalise: Literal["none", "length", "sqrt_length"] = "none"
    """Ablation: what log W is divided by."""
    symmetric: Literal["none", "positive", "negative"] = "none"
    """Ablation: the sign whose constants serve both."""


class Vespo(Estimator[VespoOptions]):
    """phi(W) of each sequence [s], the same for all its tokens."""

    name: ClassVar[str] = "vespo"
    options_class: ClassVar[type[EstimatorOptions]] = VespoOptions
    formula: ClassVar[str] = "W^c1 exp(c2 (1 - W));  W = prod_t pi/mu;  (c1, c2) by the sign of A"
    reference: ClassVar[str] = "VESPO, arXiv:2602.10693v3"

    @override
    def weigh(self, view: View) -> Weighed:
        """Sequence product and gamma kernel."""
        o = self.options
        log_w = view.product()
        if o.length_normalise != "none":
            power = 1.0 if o.length_normalise == "length" else 0.5
            log_w = LogRatio(log_w.values / view.token_counts.clamp(min=1) ** power, log_w.part)
        good = view.advantages >= 0
        if o.symmetric != "none":
            good = torch.full_like(good, o.symmetric == "positive")
        c1 = masks.choose(good, o.c1_positive, o.c1_negative, log_w.values.dtype)
        c2 = masks.choose(good, o.c2_positive, o.c2_negative, log_w.values.dtype)
        return Weighed(kernel.gamma(log_w, c1, c2), log_weight=log_w)
