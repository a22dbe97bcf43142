"""Every metric that hetero-rl exports: its name, kind, labels and meaning. Pure data; the documentation is tested against it.

Names follow the conventions of Prometheus: `hetero_rl_`, who measures, what, the base unit, and `_total` for counters. Each label
has few values: backends, states, causes and kinds that the code names, and the workers that are alive, at most `MOST_WORKERS`.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["CATALOGUE", "MOST_WORKERS", "Kind", "Metric", "Reading", "declare"]

MOST_WORKERS = 1000
"""Workers that get series of their own; those after them, by name, are counted and no more."""


class Kind(enum.StrEnum):
    """Whether a number only grows."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    """As in a query; a counter's ends in `_total`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __call__(self, value: float, *labels: str) -> "Reading":
        """A value of it; `labels` in the order of the declaration."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, got the values {labels}")
        return Reading(self, float(value), labels)


@dataclass(frozen=True, slots=True)
class Reading:
    """One value at one moment.

    Example: ``Reading(HUB_WORKERS, 2.0, ("cpu", "active"))``.
    """

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


CATALOGUE: dict[str, Metric] = {}
"""By name; filled by `declare` when the modules of the exporters are imported."""


def declare(name: str, help_text: str, labels: Iterable[str] = ()) -> Metric:
    """Makes a metric known; a name that ends in `_total` is a counter."""
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    metric = Metric(name, kind, help_text, tuple(labels))
    if CATALOGUE.setdefault(name, metric) != metric:
        raise ValueError(f"the metric {name} is declared twice, with different meanings")
    return metric
