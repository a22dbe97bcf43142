"""When a process that died is started again, and when that is given up."""

import dataclasses

__all__ = ["PERMANENT_EXIT_CODE", "RestartPolicy"]

PERMANENT_EXIT_CODE = 2
"""How a process ends when another start would meet the same error: a setting, a missing file, a refused model."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A bounded number of restarts with delays that double; a long enough healthy life forgives earlier deaths."""

    max_restarts: int = 5
    first_delay: float = 0.5
    """Seconds before the first restart."""
    longest_delay: float = 30.0
    healthy_after: float = 60.0
    """Seconds of life after which earlier deaths no longer count."""

    def deaths_after(self, earlier_deaths: int, lifetime: float) -> int:
        """Deaths that count, this one included."""
        return 1 if lifetime >= self.healthy_after else earlier_deaths + 1

    def delay(self, deaths: int, exit_code: int) -> float | None:
        """Seconds before the next start; None gives up."""
        if exit_code == PERMANENT_EXIT_CODE or deaths > self.max_restarts:
            return None
        return min(self.first_delay * 2.0 ** (deaths - 1), self.longest_delay)
