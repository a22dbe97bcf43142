"""Sequence-masked importance sampling: raw token weights inside sequences whose mean ratio is close to 1.

    coefficient_t = w_t where geometric_low <= (prod_t w_t)^(1/T) <= geometric_high, else 0 for the whole sequence
    w_t from pi/mu (parts = "total"), or from pi_old/mu and times u_t = pi/pi_old with PPO's clip (parts = "split")

The window of NeMo RL and OpenRLHF, 0.999 to 1.002, fits one engine and one chip. Between chips of different vendors it
rejects nearly everything: widen it, and watch the masked share.
"""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.split import SplitOptions, SplitRatio
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part, bounded_exp
from hetero_rl.estimators.view import View, Weighed

__all__ = ["SeqMaskTis", "SeqMaskTisOptions"]


class SeqMaskTisOptions(SplitOptions):
    """Constants of `seq_mask_tis`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    geometric_low: float = Field(0.999, ge=0)
    """Smallest geometric mean ratio of a kept sequence."""
    geometric_high: float = Field(1.002, gt=0)
    """Largest geometric mean ratio of a kept sequence."""


class SeqMaskTis(SplitRatio[SeqMaskTisOptions]):
    """Ratio of each token [n] of the kept sequences."""

    name: ClassVar[str] = "seq_mask_tis"
    options_class: ClassVar[type[EstimatorOptions]] = SeqMaskTisOptions
    formula: ClassVar[str] = "w_t where the sequence's geometric mean ratio is inside the window, else 0"
    reference: ClassVar[str] = "seq-mask-tis of NeMo RL, NVIDIA, 2026"

    @override
    def correct(self, view: View, part: Part) -> Weighed:
        """Token ratios and sequence window."""
        log_s = view.geometric_mean(part)
        keep = masks.window(bounded_exp(log_s), self.options.geometric_low, self.options.geometric_high)
        return Weighed(kernel.identity(view.log_ratio(part), view.out), keep)
