"""DAPO: GRPO with a higher upper clip, and every token of the batch counted alike.

    coefficient_t = r_t where the clip (0.2 below, 0.28 above) is not active, else 0

arXiv:2503.14476. The clip and its options are those of `ppo`. What DAPO does to the data (dropping groups whose rewards are
all equal, shaping overlong answers) is not an estimator's business and is not done here.
"""

from typing import ClassVar

from pydantic import Field

from hetero_rl.estimators.base import EstimatorOptions
from hetero_rl.estimators.ppo import ClipOptions, ClippedTokenRatio
from hetero_rl.estimators.stages.advantages import AdvantageKind

__all__ = ["Dapo", "DapoOptions"]


class DapoOptions(ClipOptions):
    """Constants of `dapo`."""

    advantage: AdvantageKind = "group_mean_std"
    """How a reward becomes an advantage."""
    epsilon_high: float = Field(0.28, ge=0)
    """Upper clip margin."""


class Dapo(ClippedTokenRatio[DapoOptions]):
    """Clipped ratio of each token [n]."""

    name: ClassVar[str] = "dapo"
    options_class: ClassVar[type[EstimatorOptions]] = DapoOptions
    reference: ClassVar[str] = "Yu et al., DAPO, arXiv:2503.14476"
