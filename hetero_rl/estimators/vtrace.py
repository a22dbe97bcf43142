"""V-trace: products of truncated ratios over the prefix.

    coefficient_t = min(rho_bar, r_t) * prod_(s<t) min(c_bar, r_s);  r_t = pi(y_t)/mu(y_t)

IMPALA, arXiv:1802.01561, for a reward at the end of the sequence and no critic. With rho_bar = c_bar = 1 no coefficient exceeds 1,
and a token counts only as far as its whole prefix is still likely. The ratio is against the recorded log-probabilities.
"""

import math
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, level
from hetero_rl.estimators.stages.edge import Part
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Vtrace", "VtraceOptions"]


class VtraceOptions(EstimatorOptions):
    """Constants of `vtrace`."""

    rho_bar: float = Field(1.0, gt=0)
    """Largest ratio of the token itself."""
    c_bar: float = Field(1.0, gt=0)
    """Largest ratio of each token before it."""


class Vtrace(Estimator[VtraceOptions]):
    """Truncated prefix product of each token [n]."""

    name: ClassVar[str] = "vtrace"
    options_class: ClassVar[type[EstimatorOptions]] = VtraceOptions
    formula: ClassVar[str] = "min(rho_bar, r_t) * prod_(s<t) min(c_bar, r_s);  r_t = pi/mu"
    reference: ClassVar[str] = "Espeholt et al., IMPALA, arXiv:1802.01561"

    @override
    def weigh(self, view: View) -> Weighed:
        """Prefix product of truncated ratios."""
        o = self.options
        total = view.log_ratio(Part.TOTAL)
        log_rho, log_c = math.log(o.rho_bar), math.log(o.c_bar)
        log_weight = level.prefix_product(total, view.lengths, view.column(), high=log_c)
        if o.rho_bar != o.c_bar:
            log_weight.values.add_(total.values.clamp(max=log_rho) - total.values.clamp(max=log_c))
        return Weighed(kernel.identity(log_weight, view.out))
