"""OPSM: GRPO's clipped ratio without the bad sequences that the policy has left behind.

    coefficient_t = r_t with PPO's clip, and 0 for a sequence with A < 0 and mean_t log(anchor(y_t)/pi(y_t)) > delta

Off-policy sequence masking of DeepSeek-V3.2, arXiv:2512.02556, equation 9. The paper gives no delta; published settings run
from 1e-4 to 0.5, so it has to be chosen. Its pi_old is what the engine reported, which is the anchor "behavior".
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.ppo import ClipOptions, ClippedTokenRatio
from hetero_rl.estimators.stages import masks
from hetero_rl.estimators.stages.advantages import AdvantageKind
from hetero_rl.estimators.stages.aggregation import AggregationKind
from hetero_rl.estimators.view import View, Weighed

__all__ = ["Opsm", "OpsmOptions"]


class OpsmOptions(ClipOptions):
    """Constants of `opsm`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    aggregation: AggregationKind = "sequence_mean_token_mean"
    """What one token counts in the loss of the batch."""
    delta: float = Field(gt=0)
    """Mean log-ratio per token from the policy back to the anchor, above which a bad sequence is dropped."""


class Opsm(ClippedTokenRatio[OpsmOptions]):
    """Clipped ratio of each token [n] of the kept sequences."""

    name: ClassVar[str] = "opsm"
    options_class: ClassVar[type[EstimatorOptions]] = OpsmOptions
    formula: ClassVar[str] = "r_t with PPO's clip, and 0 where A < 0 and mean_t log(anchor/pi) > delta"
    reference: ClassVar[str] = "DeepSeek-V3.2, arXiv:2512.02556"
    example_options: ClassVar[dict[str, Any]] = {"delta": 0.5}

    @override
    def weigh(self, view: View) -> Weighed:
        """Clip, and the mask of stale bad sequences."""
        clipped = super().weigh(view)
        log_s = view.geometric_mean(self.options.part)
        lowest = torch.full_like(log_s.values, -torch.inf).masked_fill_(
            view.advantages < 0, -self.options.delta
        )
        sequences = masks.window(log_s.values, lowest, None)
        return Weighed(clipped.weight, sequences)
