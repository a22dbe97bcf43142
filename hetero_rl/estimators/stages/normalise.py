"""Normalisers: weights of a whole batch or group brought to a common scale, in log space."""

import math

import torch
from torch import Tensor

from hetero_rl.estimators.stages.groups import Groups, group_log_sum_exp

__all__ = ["batch_mean_log", "group_self_log"]


def batch_mean_log(log_weights: Tensor) -> float:
    """Log of the mean weight over the batch [s]; 0 when every weight is 0."""
    value = float(torch.logsumexp(log_weights.to(torch.float64), 0)) - math.log(log_weights.shape[0])
    return value if math.isfinite(value) else 0.0


def group_self_log(log_weights: Tensor, groups: Groups) -> Tensor:
    """Log of G w_i / sum_j w_j over the members present in each group [s]; -inf weights stay -inf.

    The G weights of a group sum to the number of its members that have a weight.
    """
    members = torch.zeros(groups.sizes.shape, dtype=torch.float64, device=log_weights.device)
    members.index_add_(0, groups.index, log_weights.isfinite().to(torch.float64))
    total = group_log_sum_exp(log_weights, groups)
    scale = torch.where(total.isfinite(), members.clamp(min=1).log() - total, 0.0)
    return (log_weights.to(torch.float64) + scale[groups.index]).to(log_weights.dtype)
