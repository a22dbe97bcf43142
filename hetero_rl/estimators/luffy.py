"""LUFFY: an expert's sequences beside the policy's own.

    own sequences:     r_t = pi(y_t)/anchor(y_t) with PPO's clip
    expert sequences:  gamma p / (p + gamma)^2 with p = pi(y_t)

arXiv:2504.14945. An expert's log-probabilities are not known, so its mu counts as 1 and the ratio is p itself, shaped by
p / (p + gamma): the coefficient is that shape's gradient, largest where p = gamma. It is not 1 on-policy. Baselines come from
the policy's own sequences alone. `RecordedBatch.expert` says which is which; expert_rows = "all" takes every sequence for one.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.ppo import ClipOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.edge import Weight
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Luffy", "LuffyOptions"]


class LuffyOptions(ClipOptions):
    """Constants of `luffy`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    gamma: float = Field(0.1, gt=0)
    """Probability at which an expert's token has the largest coefficient."""
    expert_rows: Literal["recorded", "all"] = "recorded"
    """"recorded": those that the batch marks, and a batch without marks is refused. "all": every sequence."""


class Luffy(Estimator[LuffyOptions]):
    """Clipped ratio or shaped probability of each token [n]."""

    name: ClassVar[str] = "luffy"
    options_class: ClassVar[type[EstimatorOptions]] = LuffyOptions
    formula: ClassVar[str] = "own: r_t with PPO's clip;  expert: gamma p / (p + gamma)^2, p = pi"
    reference: ClassVar[str] = "Yan et al., Learning to Reason under Off-Policy Guidance, arXiv:2504.14945"
    example_options: ClassVar[dict[str, Any]] = {"expert_rows": "all"}

    @override
    def weigh(self, view: View) -> Weighed:
        """Both weights, chosen by sequence."""
        o = self.options
        if o.expert_rows == "all":
            return Weighed(kernel.expert_shape(view.log_probs, o.gamma, view.out))
        if view.expert is None:
            raise ValueError('expert is None; mark the expert\'s sequences, or set expert_rows = "all"')
        shaped = kernel.expert_shape(view.log_probs, o.gamma)
        log_ratio = view.log_ratio(o.part)
        ratio = kernel.identity(log_ratio)
        bounds = view.clip_bounds(1 - o.epsilon_low, 1 + o.epsilon_high, o.clip_ratio_c)
        kept = masks.window(ratio.values, *map(view.to_tokens, bounds))
        expert = view.to_tokens(view.expert)
        values = torch.where(expert, shaped.values, ratio.values)
        return Weighed(Weight(values, ratio.part), torch.where(expert, 1.0, kept))
