"""What counts as too much. Where a default is 0, the declared data type decides (`diagnosis.FLOORS`); every one can be set."""

import dataclasses
from collections.abc import Sequence

from hetero_rl.errors import ConfigError

__all__ = ["Thresholds", "thresholds_from"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Numbers that a verdict compares with, in nats unless said otherwise."""

    ess_floor: float = 0.5
    """Least effective share of sequences, 0 to 1, up to which a length counts as usable."""
    unusable_share: float = 0.25
    """A usable length below this share of the run's longest completion makes the verdict unusable."""
    mean_gap: float = 0.0
    """Mean |gap| that needs no explanation; 0 takes what the declared data types explain."""
    repeat: float = 1e-5
    """Mean |difference| between two runs of the same request."""
    batch: float = 0.0
    """Mean |difference| between alone and batched; 0 takes half of what the data type explains."""
    decode: float = 0.0
    """Mean |difference| between sampled and scored; 0 takes what the data type explains."""
    returned: float = 1e-5
    """Mean |difference| after A, B, A; what two runs differ by anyway is added."""

    def __post_init__(self) -> None:
        """Checks ranges."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            most = 1.0 if field.name in {"ess_floor", "unusable_share"} else 100.0
            if not 0 <= value <= most:
                raise ConfigError(f"threshold {field.name} is {value}; it lies in [0, {most:g}]")


def thresholds_from(assignments: Sequence[str]) -> Thresholds:
    """Thresholds from NAME=VALUE texts; raises ConfigError naming those there are."""
    names = [field.name for field in dataclasses.fields(Thresholds)]
    values: dict[str, float] = {}
    for text in assignments:
        name, separator, number = text.partition("=")
        if not separator or name not in names:
            raise ConfigError(f"--threshold {text!r}: give NAME=VALUE with a name of {', '.join(names)}")
        try:
            values[name] = float(number)
        except ValueError as error:
            raise ConfigError(f"--threshold {text!r}: {number!r} is no number") from error
    return Thresholds(**values)
