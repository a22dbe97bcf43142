"""How far a run is, reduced from the metrics of its steps: plain values, no terminal."""

import dataclasses
from collections import deque
from collections.abc import Mapping

from hetero_rl.observe import names

__all__ = ["Evaluation", "RunProgress", "duration", "sparkline"]

HISTORY = 48
"""Steps that the small reward curve shows."""
RATE_WINDOW = 20
"""Steps whose mean duration gives the expected end."""

_BARS = "▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out accuracy after a number of steps."""

    step: int
    accuracy: float


@dataclasses.dataclass(slots=True)
class RunProgress:
    """Everything that the views show of the training itself.

    Args:
        total_steps: Steps of the whole run.
        step: Steps already made when watching began.
    """

    total_steps: int
    step: int = 0
    latest: dict[str, float] = dataclasses.field(default_factory=dict)
    """The newest value of each metric, whatever its step."""
    rewards: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=HISTORY))
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    _step_seconds: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=RATE_WINDOW))

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a step; step 0 is the state before training."""
        self.latest.update(metrics)
        self.step = max(self.step, step)
        if (reward := metrics.get(names.REWARD)) is not None:
            self.rewards.append(reward)
        if (accuracy := metrics.get(names.ACCURACY)) is not None:
            # Evaluation runs beside training: the result is of an earlier step than the line that brings it.
            self.evaluations.append(Evaluation(int(metrics.get(names.ACCURACY_STEP, step)), accuracy))
        if (seconds := metrics.get(names.STEP_SECONDS)) is not None:
            self._step_seconds.append(seconds)

    def metric(self, name: str) -> float | None:
        """The newest value of a metric; None before the first."""
        return self.latest.get(name)

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds to the last step; None before the first step."""
        if not self._step_seconds:
            return None
        return (self.total_steps - self.step) * sum(self._step_seconds) / len(self._step_seconds)

    @property
    def waits(self) -> dict[str, float]:
        """Share of the newest step that was spent waiting, by cause, largest first; nothing under one per cent."""
        seconds = self.latest.get(names.STEP_SECONDS, 0.0)
        if seconds <= 0:
            return {}
        shares = {
            name.removeprefix(names.WAIT_PREFIX).replace("_", " "): value / seconds
            for name, value in self.latest.items()
            if name.startswith(names.WAIT_PREFIX)
        }
        return dict(sorted(((c, s) for c, s in shares.items() if s >= 0.01), key=lambda item: -item[1]))


def sparkline(values: "deque[float] | list[float]", width: int = HISTORY) -> str:
    """The last values as bars between their own smallest and largest."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
