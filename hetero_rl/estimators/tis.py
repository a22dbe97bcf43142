"""TIS: an importance weight for the difference to the sampler, truncated from above.

    coefficient_t = min(w, threshold)                          parts = "total":  w from pi/mu
    coefficient_t = min(w, threshold) * u_t with PPO's clip    parts = "split":  w from pi_old/mu, u_t = pi/pi_old
    w: the token's ratio, the product over the sequence, or its geometric mean

Yao et al., fengyao.notion.site/off-policy-rl, 2025; threshold 2. `normalise = "batch"` divides by the mean weight of the
whole batch, which couples sequences and costs an extra pass.
"""

import dataclasses
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from hetero_rl.estimators.base import EstimatorOptions, Needs
from hetero_rl.estimators.batch import PreparedBatch
from hetero_rl.estimators.split import SplitOptions, SplitRatio
from hetero_rl.estimators.stages import kernel
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Part, Weight
from hetero_rl.estimators.stages.groups import Groups
from hetero_rl.estimators.view import View, Weighed, views

__all__ = ["Tis", "TisOptions"]


class TisOptions(SplitOptions):
    """Constants of `tis`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """What is truncated: each token's ratio, the product over the sequence, or its geometric mean."""
    threshold: float = Field(2.0, gt=0)
    """Largest weight."""
    normalise: Literal["none", "batch"] = "none"
    """Whether weights are divided by their mean over the batch (after truncation)."""


class Tis(SplitRatio[TisOptions]):
    """Truncated weight of each token [n]."""

    name: ClassVar[str] = "tis"
    options_class: ClassVar[type[EstimatorOptions]] = TisOptions
    formula: ClassVar[str] = "min(w, threshold), times PPO's clipped pi/pi_old where the ratio is split"
    reference: ClassVar[str] = (
        "Yao et al., Your efficient RL framework secretly brings you off-policy RL training, 2025"
    )

    @property
    @override
    def needs(self) -> Needs:
        """The whole batch under the current policy where weights are divided by its mean."""
        return Needs.CURRENT_POLICY if self.options.normalise == "batch" else super().needs

    @override
    def couple(self, prepared: PreparedBatch, groups: Groups, log_probs: Tensor | None) -> PreparedBatch:
        """Adds the mean truncated weight of the batch, over tokens or over sequences as the level says."""
        if self.options.normalise == "none" or log_probs is None:
            return prepared
        total, count = 0.0, 0
        for view in views(prepared, log_probs):
            values = self._truncated(view, self.options.part).values
            total += float(values.sum(dtype=torch.float64))
            count += values.shape[0]
        mean = torch.tensor(total / count, dtype=log_probs.dtype, device=log_probs.device)
        return dataclasses.replace(prepared, sequence_constants=mean.expand(prepared.advantages.shape[0]))

    @override
    def correct(self, view: View, part: Part) -> Weighed:
        """Ratio at the chosen level, truncated."""
        weight = self._truncated(view, part)
        if self.options.normalise == "none":
            return Weighed(weight)
        mean = view.constants
        return Weighed(
            Weight(weight.values / (mean if weight.values.shape == mean.shape else mean[0]), weight.part)
        )

    def _truncated(self, view: View, part: Part) -> Weight:
        if self.options.level == "token":
            return kernel.truncate(view.log_ratio(part), None, self.options.threshold, view.out)
        log_weight = view.product(part) if self.options.level == "sequence" else view.geometric_mean(part)
        return kernel.truncate(log_weight, None, self.options.threshold)
