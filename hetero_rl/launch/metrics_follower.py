"""Follows the metrics file of a trainer that runs elsewhere, on a file system that both see, into sinks of this process.

    rank 0 ──► RUN/metrics.jsonl ──► follower (a thread, looks twice a second) ──► view, exporter

A trainer that goes on from a checkpoint replaces the file; steps that were shown already are not shown again.
"""

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hetero_rl.trainer.sinks.base import MetricsRecord, Sink

__all__ = ["MetricsFollower"]

LOOK_SECONDS = 0.5


class MetricsFollower:
    """Feeds sinks from a metrics file while its block runs.

    Args:
        file: The metrics file; it need not be there yet.
        sinks: Where records go; started and closed by whoever made them.
    """

    def __init__(self, file: Path, sinks: Sequence[Sink]) -> None:
        self._file = file
        self._sinks = sinks
        self._inode = 0
        self._offset = 0
        self._shown = -1
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="metrics-follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Hands on what is new."""
        for line in self._new_lines():
            try:
                fields = json.loads(line)
                step = int(fields.pop("step"))
            except (ValueError, KeyError, AttributeError):
                continue
            if step <= self._shown:
                continue
            self._shown = step
            record = MetricsRecord(
                step, {key: float(value) for key, value in fields.items() if value is not None}
            )
            for sink in self._sinks:
                sink.write(record)

    def _new_lines(self) -> list[bytes]:
        """Whole lines since the last look; all of them when the file is another one."""
        try:
            file = self._file.open("rb")
        except FileNotFoundError:
            return []
        with file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()

    def _follow(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self.look()
