"""The seam for metrics: what the training loop calls after every step."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping

__all__ = ["MetricsRecord", "Sink"]


@dataclasses.dataclass(frozen=True, slots=True)
class MetricsRecord:
    """Metrics of one optimizer step; step 0 is the state before training.

    Example: ``MetricsRecord(3, {"reward/mean": 0.25, "time": 1700000000.0})``.
    """

    step: int
    values: Mapping[str, float]


class Sink(ABC):
    """Takes metrics of one run.

    Constraints on every implementation:

    - `start(resume_step=k)` MUST be called first, and MUST make records of steps above k from an earlier life of the
      run no longer count, so that no step occurs twice.
    - `write` MUST have handed the record to the operating system when it returns; steps ascend.
    - Values that are not finite MUST NOT make the output unreadable.
    - `close` MUST be safe to repeat, and to call without `start`.
    """

    @abstractmethod
    def start(self, *, resume_step: int) -> None:
        """Opens the output. `resume_step` is the step that is continued from; -1 is a new run."""

    @abstractmethod
    def write(self, record: MetricsRecord) -> None:
        """Takes the metrics of a step."""

    @abstractmethod
    def close(self) -> None:
        """Ends the output."""
