"""metrics.jsonl: one JSON object per line and step."""

import json
import math
import os
from pathlib import Path
from typing import IO, Any

from typing_extensions import override

from hetero_rl.trainer.sinks.base import MetricsRecord, Sink

__all__ = ["JsonlSink"]


class JsonlSink(Sink):
    """Appends to a file; each line is flushed. A value that is not finite is written as null.

    Args:
        path: The file; missing directories are made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    @override
    def start(self, *, resume_step: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in self._lines() if _step_of(line) <= resume_step]
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")

    @override
    def write(self, record: MetricsRecord) -> None:
        if self._file is None:
            raise ValueError(f"{self._path} is written before start()")
        values = {
            name: value if math.isfinite(value) else None
            for name, value in record.values.items()
            if name != "step"
        }
        self._file.write(json.dumps({"step": record.step, **values}, allow_nan=False) + "\n")
        self._file.flush()

    @override
    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []


def _step_of(line: str) -> float:
    """Step of a line; infinite for a line that a crash cut short, so that it is dropped."""
    try:
        fields: Any = json.loads(line)
        return int(fields["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
