"""Statistics over the members of a prompt group, in float64 and in log space where probabilities are summed."""

import dataclasses

import torch
from torch import Tensor

__all__ = ["Groups", "group_log_sum_exp", "group_sum"]


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """Which group each sequence belongs to."""

    index: Tensor
    """Dense group number of each sequence [s], int64."""
    sizes: Tensor
    """Members present in each group [g], int64."""

    @classmethod
    def of(cls, group_ids: Tensor) -> "Groups":
        """Numbers the groups of `group_ids` [s]."""
        _, index, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
        return cls(index, sizes)


def group_sum(values: Tensor, groups: Groups) -> Tensor:
    """Sum over each group [g] of one number per sequence [s], float64."""
    sums = torch.zeros(groups.sizes.shape[0], dtype=torch.float64, device=values.device)
    return sums.index_add_(0, groups.index, values.to(torch.float64))


def group_log_sum_exp(log_values: Tensor, groups: Groups) -> Tensor:
    """Logarithm of the sum of exponentials over each group [g], float64; -inf members add nothing, a group of nothing else gives -inf."""
    wide = log_values.to(torch.float64)
    peaks = torch.full(groups.sizes.shape, -torch.inf, dtype=torch.float64, device=wide.device)
    peaks.scatter_reduce_(0, groups.index, wide, "amax")
    peaks = torch.where(peaks.isfinite(), peaks, 0.0)
    return peaks + group_sum(torch.exp(wide - peaks[groups.index]), groups).log()
