"""The one place that says in which types the trainer computes.

    master weights, gradients, optimizer     float32, always
    forward and backward of the trunk        trainer.compute_dtype: float32, bfloat16 or float16
    output head                              trainer.head_dtype: as the trunk, or float32; sums and log-probs are float32 anyway
    float32 products on an accelerator       trainer.matmul_precision: "highest" is IEEE float32, "high" allows TF32

float16 has a small range: the loss is multiplied by a scale before backward and gradients are divided by it after. Gradients
that overflow are computed again with a smaller scale (`LossScale`), so a step is never lost. Its head computes in float32,
because sums over a vocabulary leave the range.
"""

import dataclasses
import logging
import math

import torch

from hetero_rl.config.tree import TrainerConfig
from hetero_rl.trainer.policy import DATA_TYPES

__all__ = ["LossScale", "Precision"]

HALF_PRECISION_LOSS_SCALE = 2.0**14
"""Lifts float16 gradients of a loss that is divided by all tokens of the batch out of the subnormal range."""
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """Types of a run."""

    compute: torch.dtype
    head: torch.dtype
    tf32: bool
    """Whether float32 products on an accelerator may round their factors to 10 bits."""

    @classmethod
    def of(cls, config: TrainerConfig) -> "Precision":
        """What the settings ask for."""
        compute = DATA_TYPES[config.compute_dtype]
        wide = config.head_dtype == "float32" or compute == torch.float16
        return cls(compute, torch.float32 if wide else compute, config.matmul_precision == "high")

    def apply(self) -> None:
        """Sets what torch keeps for the whole process."""
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32


class LossScale:
    """What the loss is multiplied with before backward.

    Args:
        compute_dtype: Types other than float16 have the range of float32 and need none.
    """

    def __init__(self, compute_dtype: torch.dtype) -> None:
        self.value = HALF_PRECISION_LOSS_SCALE if compute_dtype == torch.float16 else 1.0

    def lowered_after(self, gradient_norm: float, step: int) -> bool:
        """Whether a norm that is not finite is worth another try with the smaller scale that is set then."""
        if math.isfinite(gradient_norm) or self.value <= 1:
            return False
        self.value = max(1.0, self.value / 16)
        _LOG.warning(
            "step %d: float16 gradients overflowed; computing them again with a loss scale of %g",
            step,
            self.value,
        )
        return True
