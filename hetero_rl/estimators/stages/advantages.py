"""Advantages: from the rewards of a prompt group to one number per sequence."""

from typing import Literal

import torch
from torch import Tensor

from hetero_rl.estimators.stages.groups import Groups, group_sum

__all__ = ["AdvantageKind", "advantages"]

AdvantageKind = Literal["none", "group_mean", "group_mean_std", "leave_one_out"]


def advantages(
    rewards: Tensor,
    groups: Groups,
    kind: AdvantageKind,
    std_epsilon: float,
    counted: Tensor | None = None,
) -> Tensor:
    """Advantage of each sequence [s], in the data type of `rewards`.

    - none: the reward itself.
    - group_mean: reward minus the group's mean (Dr. GRPO).
    - group_mean_std: that, divided by the group's unbiased standard deviation plus `std_epsilon` (GRPO).
    - leave_one_out: reward minus the mean of the others (RLOO).

    A group reduced to one member says nothing against a baseline: its advantage is 0.

    Args:
        rewards: Rewards [s].
        groups: Groups of the sequences.
        kind: Which of the above.
        std_epsilon: Added to the standard deviation.
        counted: Sequences that the baseline is made of [s], bool; None takes all.
    """
    if kind == "none":
        return rewards
    share = torch.ones_like(rewards) if counted is None else counted.to(rewards.dtype)
    sizes = group_sum(share, groups).clamp(min=1)
    centred = rewards.to(torch.float64) - (group_sum(rewards * share, groups) / sizes)[groups.index]
    if kind == "leave_one_out":
        centred *= (sizes / (sizes - 1).clamp(min=1))[groups.index]
    elif kind == "group_mean_std":
        variance = group_sum(centred.square() * share, groups) / (sizes - 1).clamp(min=1)
        centred /= (variance.sqrt() + std_epsilon)[groups.index]
    return centred.to(rewards.dtype)
