"""The one form of every benchmark's result.

    {"bench": NAME, "machine": {...}, "versions": {...}, "figures": [{"name", "value", "unit", "low", "high", "target",
    "relation", "baseline"}]}

Machine and versions say what ran, not where: no host, user or address.
"""

import dataclasses
import json
import os
import platform
import sqlite3
import zlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Literal

import hetero_rl

__all__ = ["BenchReport", "Figure", "machine_facts", "version_facts"]

_PACKAGES = ("grpcio", "protobuf", "numpy", "torch", "transformers", "safetensors")


def machine_facts() -> dict[str, str | int]:
    """Processor, cores and memory."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def version_facts() -> dict[str, str]:
    """Versions of everything that changes the figures; packages that are not installed are left out."""
    found = {
        "hetero_rl": hetero_rl.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number.

    Example: `Figure(name="bytes_per_token", value=4.9, unit="bytes", low=4.8, high=4.9, target=5.2, relation="<=",
    baseline="8 bytes raw")`
    """

    name: str
    value: float
    """The median where it was measured several times."""
    unit: str
    """"ratio" for a comparison with the baseline."""
    low: float
    high: float
    """Smallest and largest single measurement."""
    baseline: str
    """What it is compared with, in words."""
    target: float | None = None
    """What the project promises; None for a figure that only informs."""
    relation: Literal["<=", ">="] | None = None
    """How the value should lie to the target."""

    def __post_init__(self) -> None:
        if (self.target is None) != (self.relation is None):
            raise ValueError(f"figure {self.name!r}: give target and relation together, or neither")
        if not self.low <= self.value <= self.high:
            raise ValueError(f"figure {self.name!r}: {self.value} is not within [{self.low}, {self.high}]")

    @property
    def met(self) -> bool | None:
        """Whether the value keeps the target; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.relation == "<=" else self.value >= self.target


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """All figures of one benchmark, and what they were measured on."""

    bench: str
    figures: tuple[Figure, ...]
    machine: Mapping[str, str | int] = dataclasses.field(default_factory=machine_facts)
    versions: Mapping[str, str] = dataclasses.field(default_factory=version_facts)

    def to_json(self) -> str:
        """The report in the form of the module's docstring, indented."""
        fields = {
            "bench": self.bench,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "figures": [dataclasses.asdict(figure) for figure in self.figures],
        }
        return json.dumps(fields, indent=2, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Writes the report; an earlier file of that name is replaced as a whole."""
        scratch = path.with_name(f"{path.name}.tmp")
        scratch.write_text(self.to_json(), encoding="utf-8")
        scratch.replace(path)
