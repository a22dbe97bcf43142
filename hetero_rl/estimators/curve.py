"""The coefficient as a function of the ratio, for people to look at.

One token of probability 0.05 under mu has ratio W under pi; seven more completions of its prompt are on-policy. So the
curve of a method that reads its group or the batch is that of one deviating completion out of eight.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from hetero_rl.estimators.base import Estimator, Needs
from hetero_rl.estimators.batch import RecordedBatch

__all__ = ["coefficient_at", "coefficient_curve"]

GROUP_SIZE = 8
BEHAVIOR_PROBABILITY = 0.05


def coefficient_curve(estimator: Estimator[Any], weights: Sequence[float], advantage: float) -> list[float]:
    """Coefficients at the given ratios.

    Args:
        estimator: Any preset.
        weights: Ratios W, between 0 and 20.
        advantage: Advantage of the deviating completion; its sign is what most methods read.
    """
    options = estimator.options.model_copy(update={"advantage": "none"})
    plain = type(estimator)(options)
    return [coefficient_at(plain, weight, advantage) for weight in weights]


def coefficient_at(estimator: Estimator[Any], weight: float, advantage: float) -> float:
    """Coefficient of one deviating token."""
    behavior = torch.full((GROUP_SIZE,), math.log(BEHAVIOR_PROBABILITY), dtype=torch.float64)
    current = behavior.clone()
    current[0] += math.log(weight)
    recorded = RecordedBatch(
        behavior_log_probs=behavior,
        old_log_probs=behavior,
        token_lags=torch.ones(GROUP_SIZE, dtype=torch.int64),
        lengths=torch.ones(GROUP_SIZE, dtype=torch.int64),
        group_ids=torch.zeros(GROUP_SIZE, dtype=torch.int64),
        rewards=torch.full((GROUP_SIZE,), advantage, dtype=torch.float64),
        max_new_tokens=1,
    )
    needed = current if estimator.needs is Needs.CURRENT_POLICY else None
    return float(estimator.coefficients(estimator.prepare(recorded, needed), current).values[0])
