"""Whether SQLite's write-ahead log gives back everything that was committed to it.

    journal.sqlite-wal    header │ frame │ frame, commit │ frame │ frame │ frame, commit │ frames of an earlier round ...
    journal.sqlite-shm    how many frames counted when the hub last committed; not synced, but it outlives a kill

SQLite reads a log up to the first frame whose checksum fails and takes the rest for what a crash left half written. Of a
commit that was synced this is wrong: the frame was damaged, and everything behind it would be lost without a word. Two things
tell: commits after the place where the reading ends, and the count in the index that the killed hub left behind.

A process that closes any descriptor of a file loses all of its POSIX locks on that file. Whoever has a journal open must therefore
never open and close its index: the next program that opened the journal would find nobody's lock, take the index for a left-over and
empty it under the writer. `LogIndex` keeps the file open for as long as the connection is.
The files' formats are those of https://www.sqlite.org/walformat.html.
"""

import dataclasses
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from hetero_rl.errors import DamagedJournalError, StorageError

__all__ = ["LogEvidence", "LogIndex", "check_log", "log_evidence", "log_problem"]

_LOG_HEADER = struct.Struct(">8I")  # magic, format, page size, round, two salts, two checksums
_FRAME_HEADER = struct.Struct(">6I")  # page, size of the file after a commit or 0, two salts, two checksums
_MAGIC = 0x377F0682

# In the order of this machine's bytes. The header, which is there twice: version, unused, change, initialised, order of bytes, page size, frames, pages,
# checksum of the last frame, salts, checksum of the header; then how many frames are in the main file.
_INDEX_HEADER = struct.Struct("=IIIBBHII2I2I2I")
_INDEX_SIZE = 2 * _INDEX_HEADER.size + 4


@dataclasses.dataclass(frozen=True, slots=True)
class LogEvidence:
    """What the files beside a journal say before SQLite touches them."""

    commits: tuple[int, ...]
    """Numbers, from 1, of the frames of the log that end a commit of its newest round."""
    counted: int = 0
    """Frames that counted when the index was last written; 0 when it says nothing about this log."""
    moved: bool = False
    """Whether the main file has all that counted."""
    problem: str = ""
    """What makes the whole log unreadable."""


class LogIndex:
    """The index of a journal that this process has open. Close it after the connection, never before.

    Args:
        journal: Path of the journal.
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + "-shm")
        self._file: BinaryIO | None = None

    def counted(self) -> int:
        """Frames of the log that count."""
        if self._file is None:
            self._file = self._path.open("rb", buffering=0)
        return _index_header(os.pread(self._file.fileno(), _INDEX_SIZE, 0))[0]

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


def log_evidence(journal: Path) -> LogEvidence:
    """Reads the headers of the log and the index of a journal that this process does not have open; raises StorageError."""
    try:
        return _evidence(journal, *(journal.with_name(journal.name + suffix) for suffix in ("-wal", "-shm")))
    except OSError as error:
        raise StorageError(f"the log of {journal} cannot be read: {error.strerror or error}") from error


def _evidence(journal: Path, log: Path, index: Path) -> LogEvidence:
    counted, moved, salts = _index(index)
    size = log.stat().st_size if log.is_file() else 0
    if size <= _LOG_HEADER.size:
        problem = f"it is gone, and {counted} pages of it counted" if counted and not moved else ""
        return LogEvidence((), problem=problem)
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        if not _is_header(header):
            return LogEvidence((), moved=moved, problem="its header is not what was written")
        page_size, own_salts = _LOG_HEADER.unpack(header)[2], header[16:24]
        commits = tuple(_commits(file.fileno(), size, page_size, own_salts))
    problem = "" if not commits or _expects_log(journal) else "the journal's own header says that it has none"
    same = salts == own_salts
    return LogEvidence(commits, counted if same else 0, same and moved, problem)


def check_log(connection: sqlite3.Connection, journal: Path, index: LogIndex, before: LogEvidence) -> str:
    """Holds what SQLite made of a log against what was there before.

    Args:
        connection: Open on the journal; it has written nothing.
        journal: Path of the journal.
        index: Of this journal; to be closed after the connection.
        before: From `log_evidence`, before the connection was made.

    Returns:
        What may be missing, if that can be told from a crash no more; empty when all is well.

    Raises:
        DamagedJournalError: Commits are lost.
    """
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    read = index.counted() if before.commits else 0
    problem, doubt = _judge(before, read)
    if problem:
        raise DamagedJournalError(
            f"{journal} is damaged: of its write-ahead log not everything can be read: {problem}; "
            "see docs/operations.md, section Damaged journals"
        )
    return doubt


def log_problem(journal: Path) -> str:
    """What cannot be read of the log of a journal that nobody has open; touches nothing. About a second for 10 MB."""
    before = log_evidence(journal)
    log = journal.with_name(journal.name + "-wal")
    read = _readable(log.read_bytes()) if before.commits else 0
    problem, doubt = _judge(before, read)
    return problem or doubt


def _judge(before: LogEvidence, read: int) -> tuple[str, str]:
    """What is certainly lost behind frame `read`, and what may be what a crash left half written."""
    lost = [number for number in before.commits if number > read]
    if before.problem:
        return before.problem, ""
    if before.counted > read:
        return f"{before.counted} of its frames counted, {read} are readable", ""
    if len(lost) > 1:
        return f"after frame {read} come {len(lost)} commits that cannot be read", ""
    return "", f"the last commit of the write-ahead log, frame {lost[0]}, is not whole" if lost else ""


def _readable(log: bytes) -> int:
    """Number of the last frame that ends a commit and whose checksum, like that of all before it, is right."""
    magic, _, page_size, *_ = _LOG_HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    sums, salts = _LOG_HEADER.unpack_from(log)[6:], log[16:24]
    read, stride = 0, _FRAME_HEADER.size + page_size
    for number, start in enumerate(range(_LOG_HEADER.size, len(log) - stride + 1, stride), start=1):
        frame = log[start : start + stride]
        sums = _checksum(frame[:8] + frame[_FRAME_HEADER.size :], order, *sums)
        if frame[8:16] != salts or _FRAME_HEADER.unpack_from(frame)[4:] != sums:
            break
        if frame[4:8] != bytes(4):
            read = number
    return read


def _checksum(data: bytes, order: str, first: int = 0, second: int = 0) -> tuple[int, int]:
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & 0xFFFFFFFF
        second = (second + right + first) & 0xFFFFFFFF
    return first, second


def _is_header(header: bytes) -> bool:
    if len(header) < _LOG_HEADER.size:
        return False
    magic, *_, first, second = _LOG_HEADER.unpack(header)
    if magic & ~1 != _MAGIC:
        return False
    return _checksum(header[:24], ">" if magic & 1 else "<") == (first, second)


def _expects_log(journal: Path) -> bool:
    """Whether the main file says that it is written by way of a log; otherwise SQLite does not look at one."""
    with journal.open("rb") as file:
        return file.read(20)[18:] == b"\2\2"


def _commits(descriptor: int, size: int, page_size: int, salts: bytes) -> Iterator[int]:
    """Numbers of the frames that have these salts and end a commit."""
    stride = _FRAME_HEADER.size + page_size
    for number, start in enumerate(range(_LOG_HEADER.size, size - stride + 1, stride), start=1):
        frame = os.pread(descriptor, 16, start)
        if frame[8:16] == salts and frame[4:8] != bytes(4):
            yield number


def _index(file: Path) -> tuple[int, bool, bytes]:
    """What `_index_header` says of a file that may be missing."""
    if not file.is_file():
        return 0, False, b""
    with file.open("rb") as stream:
        return _index_header(stream.read(_INDEX_SIZE))


def _index_header(content: bytes) -> tuple[int, bool, bytes]:
    """Frames that count by an index, whether the main file has all of them, and the salts of their log."""
    header, copy = content[: _INDEX_HEADER.size], content[_INDEX_HEADER.size : 2 * _INDEX_HEADER.size]
    if len(content) < _INDEX_SIZE or header != copy or not _INDEX_HEADER.unpack(header)[3]:
        return 0, False, b""
    frames = _INDEX_HEADER.unpack(header)[6]
    (moved,) = struct.unpack_from("=I", content, 2 * _INDEX_HEADER.size)
    return frames, moved >= frames, header[32:40]
