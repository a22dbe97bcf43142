"""The index of SQLite's write-ahead log: how far the log counts, and how much of it the main file has. Standard library only.

A process that closes any descriptor of a file loses all of its POSIX locks on that file. Whoever has a journal open must therefore
never open and close its index: the next program that opened the journal would find nobody's lock, take the index for a left-over and
empty it under the writer. `LogIndex` keeps the file open for as long as the connections are.
The file's format is that of https://www.sqlite.org/walformat.html.
"""

import dataclasses
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

__all__ = ["NO_LOG", "LogIndex", "LogMark", "mark_of_file"]

# In the order of this machine's bytes. The header, which is there twice: version, unused, change, initialised, order of bytes, page size, frames, pages,
# checksum of the last frame, salts, checksum of the header; then how many frames are in the main file.
_HEADER = struct.Struct("=IIIBBHII2I2I2I")
_SIZE = 2 * _HEADER.size + 4
_SALTS = slice(32, 40)
_TRIES = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class LogMark:
    """How far a log counts at one moment."""

    frames: int
    """Frames, from the first, that count."""
    moved: int
    """How many of them the main file has."""
    salts: bytes
    """Of this round of the log, which begins again from its first frame once the main file has everything."""


NO_LOG = LogMark(0, 0, b"")
"""What an index says that is missing, empty or damaged."""


class LogIndex:
    """The index of a journal that this process has open. Close it after the connections, never before.

    Args:
        journal: Path of the journal.
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + "-shm")
        self._file: BinaryIO | None = None

    def mark(self) -> LogMark:
        """How far the log counts now; `NO_LOG` in a journal without one. For any thread, once the first call has returned."""
        if self._file is None:
            try:
                self._file = self._path.open("rb", buffering=0)
            except FileNotFoundError:
                return NO_LOG
        for _ in range(_TRIES):
            if (mark := _mark(os.pread(self._file.fileno(), _SIZE, 0))) is not NO_LOG:
                break
            time.sleep(0)  # a commit is writing the header this very moment
        return mark

    def close(self) -> None:
        """Gives up the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mark_of_file(index: Path) -> LogMark:
    """How far a log counted when nobody in this process has the journal open; the file may be missing."""
    if not index.is_file():
        return NO_LOG
    with index.open("rb") as file:
        return _mark(file.read(_SIZE))


def _mark(content: bytes) -> LogMark:
    header, copy = content[: _HEADER.size], content[_HEADER.size : 2 * _HEADER.size]
    if len(content) < _SIZE or header != copy:
        return NO_LOG
    fields = _HEADER.unpack(header)
    initialised, frames = fields[3], fields[6]
    if not initialised:
        return NO_LOG
    (moved,) = struct.unpack_from("=I", content, 2 * _HEADER.size)
    return LogMark(frames, moved, header[_SALTS])
