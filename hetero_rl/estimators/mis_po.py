"""MIS-PO: tokens and sequences whose ratio is inside a window, all with weight 1.

    coefficient_t = 1 where token_low <= w_t <= token_high and sequence_low <= (prod_t w_t)^(1/T) <= sequence_high, else 0
    w_t from pi/mu (parts = "total"), or from pi_old/mu and times u_t = pi/pi_old with PPO's clip (parts = "split")

Step 3.5 Flash, arXiv:2602.10604. A double mask, not an accept-reject step. The sequence window of the report, 0.996 to 1.001,
is far too narrow for stale data or for two different chips: watch the masked share.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.split import SplitOptions, SplitRatio
from hetero_rl.estimators.stages import masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part, Weight
from hetero_rl.estimators.view import View, Weighed

__all__ = ["MisPo", "MisPoOptions"]


class MisPoOptions(SplitOptions):
    """Constants of `mis_po`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    token_low: float = Field(0.5, ge=0)
    """Smallest ratio of a kept token."""
    token_high: float = Field(2.0, gt=0)
    """Largest ratio of a kept token."""
    sequence_low: float = Field(0.996, ge=0)
    """Smallest geometric mean ratio of a kept sequence."""
    sequence_high: float = Field(1.001, gt=0)
    """Largest geometric mean ratio of a kept sequence."""


class MisPo(SplitRatio[MisPoOptions]):
    """1 or 0 for each token [n]."""

    name: ClassVar[str] = "mis_po"
    options_class: ClassVar[type[EstimatorOptions]] = MisPoOptions
    formula: ClassVar[str] = "1 where w_t and the sequence's geometric mean are inside their windows, else 0"
    reference: ClassVar[str] = "Step 3.5 Flash, arXiv:2602.10604"

    @override
    def correct(self, view: View, part: Part) -> Weighed:
        """Two windows."""
        o = self.options
        log_s = view.geometric_mean(part).values
        sequences = masks.window(log_s, masks.safe_log(o.sequence_low), masks.safe_log(o.sequence_high))
        bounds = view.log_bounds(o.token_low, o.token_high)
        return Weighed(Weight(view.inside(view.log_ratio(part).values, bounds, sequences), Part(0)))
