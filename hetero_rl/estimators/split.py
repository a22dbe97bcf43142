"""The base of methods that correct the sampler with one weight and the policy's drift with another.

    parts = "total":  one weight on pi/mu, no clip: nothing separates chip from staleness, so nothing is counted twice
    parts = "split":  the weight on pi_old/mu, times u_t = pi/pi_old with PPO's clip; pi_old has to be recomputed

`multiply` refuses two weights that share a part.
"""

from abc import abstractmethod
from typing import Literal, TypeVar

from pydantic import Field
from typing_extensions import override

from hetero_rl.estimators.base import Estimator, EstimatorOptions
from hetero_rl.estimators.stages import kernel, masks
from hetero_rl.estimators.stages.edge import LogRatio, Part, Weight, multiply
from hetero_rl.estimators.view import View, Weighed

__all__ = ["SplitOptions", "SplitRatio", "with_clipped_drift"]


class SplitOptions(EstimatorOptions):
    """Constants of PPO's clip where the ratio is split."""

    parts: Literal["total", "split"] = "total"
    """Whether one weight corrects pi/mu, or one corrects pi_old/mu and PPO's clip acts on pi/pi_old."""
    epsilon_low: float = Field(0.2, ge=0)
    """Lower clip margin on pi/pi_old; acts where parts is "split"."""
    epsilon_high: float = Field(0.2, ge=0)
    """Upper clip margin on pi/pi_old; acts where parts is "split"."""

    @property
    def part(self) -> Part:
        """What the weight accounts for."""
        return Part.CHIP if self.splits_ratio else Part.TOTAL

    @property
    @override
    def splits_ratio(self) -> bool:
        """Whether the ratio is split at pi_old."""
        return self.parts == "split"


SplitOptionsT = TypeVar("SplitOptionsT", bound=SplitOptions)


class SplitRatio(Estimator[SplitOptionsT]):
    """A weight for the sampler, and PPO's clip for the drift."""

    @override
    def weigh(self, view: View) -> Weighed:
        """The method's weight, times the clipped drift where the ratio is split."""
        o = self.options
        corrected = self.correct(view, o.part)
        if not o.splits_ratio:
            return corrected
        drift = view.log_ratio(Part.STALENESS)
        return with_clipped_drift(view, corrected, drift, masks.log_margins(o.epsilon_low, o.epsilon_high))

    @abstractmethod
    def correct(self, view: View, part: Part) -> Weighed:
        """The method's own weight and mask, which account for `part`."""


def with_clipped_drift(
    view: View, corrected: Weighed, drift: LogRatio, margins: tuple[float, float]
) -> Weighed:
    """Multiplies a correction of the sampler with PPO's clipped ratio of the drift.

    Args:
        view: The sequences.
        corrected: Weight and mask that account for the sampler alone.
        drift: log pi/pi_old of each token [n].
        margins: Lower and upper clip on that.
    """
    weight = Weight(view.per_token(corrected.weight.values), corrected.weight.part)
    product = multiply(weight, kernel.identity(drift, view.column()))
    return Weighed(view.drop_outside(product, drift.values, view.clip_bounds(*margins)), corrected.mask)
