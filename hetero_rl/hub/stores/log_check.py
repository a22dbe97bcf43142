"""Whether SQLite's write-ahead log gives back everything that was committed to it.

    journal.sqlite-wal    header │ frame │ frame, commit │ frame │ frame │ frame, commit │ frames of an earlier round ...
    journal.sqlite-shm    how many frames counted when the hub last committed; not synced, but it outlives a kill
    journal.sqlite-synced how many frames were synced for certain (`sync_note`)

SQLite reads a log up to the first frame whose checksum fails and takes the rest for what a crash left half written. Of a
commit that was synced this is wrong: the frame was damaged, and everything behind it would be lost without a word. Beside a note,
frames that were synced must be readable; so must all but the last few commits, because no more than these wait for their sync. In a
journal without one, every commit but the last was synced, and so was all that the index counts.

The file's format is that of https://www.sqlite.org/walformat.html.
"""

import dataclasses
import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hetero_rl.errors import DamagedJournalError, StorageError
from hetero_rl.hub.stores.log_index import LogIndex, LogMark, mark_of_file
from hetero_rl.hub.stores.sync_note import MOST_UNSYNCED, read_note

__all__ = ["LogEvidence", "check_log", "log_evidence", "log_problem"]

_LOG_HEADER = struct.Struct(">8I")  # magic, format, page size, round, two salts, two checksums
_FRAME_HEADER = struct.Struct(">6I")  # page, size of the file after a commit or 0, two salts, two checksums
_MAGIC = 0x377F0682


@dataclasses.dataclass(frozen=True, slots=True)
class LogEvidence:
    """What the files beside a journal say before SQLite touches them."""

    commits: tuple[int, ...]
    """Numbers, from 1, of the frames of the log that end a commit of its newest round."""
    counted: int = 0
    """Frames that counted when the index was last written; 0 when it says nothing about this log."""
    synced: int | None = None
    """Frames that were synced for certain; None beside a journal without a note, whose commits were synced one by one."""
    problem: str = ""
    """What makes the whole log unreadable."""


def log_evidence(journal: Path) -> LogEvidence:
    """Reads the headers of the log and the index of a journal that this process does not have open; raises StorageError."""
    try:
        return _evidence(journal, *(journal.with_name(journal.name + suffix) for suffix in ("-wal", "-shm")))
    except OSError as error:
        raise StorageError(f"the log of {journal} cannot be read: {error.strerror or error}") from error


def _evidence(journal: Path, log: Path, index: Path) -> LogEvidence:
    mark, note = mark_of_file(index), read_note(journal)
    size = log.stat().st_size if log.is_file() else 0
    if size <= _LOG_HEADER.size:
        return LogEvidence((), problem=_loss_of_all(mark, note, gone=not log.is_file()))
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        if not _is_header(header):
            return LogEvidence((), problem="its header is not what was written")
        page_size, salts = _LOG_HEADER.unpack(header)[2], header[16:24]
        commits = tuple(_commits(file.fileno(), size, page_size, salts))
    problem = "" if not commits or _expects_log(journal) else "the journal's own header says that it has none"
    counted = mark.frames if mark.salts == salts else 0
    synced = None if note is None else note[1] if note[0] == salts else 0
    return LogEvidence(commits, counted, synced, problem)


def _loss_of_all(mark: LogMark, note: tuple[bytes, int] | None, *, gone: bool) -> str:
    """What is wrong with an empty log, or with none.

    Whoever closes a journal last removes its log, and whoever then only reads it leaves an empty one: a note alone proves nothing.
    """
    synced = mark.frames if note is None else note[1] if note[0] == mark.salts else 0
    if not synced or mark.moved >= mark.frames:
        return ""
    return f"it is {'gone' if gone else 'empty'}, and {synced} pages of it counted"


def check_log(journal: Path, index: LogIndex, before: LogEvidence) -> str:
    """Holds what SQLite makes of a log against what was there before; changes neither.

    Args:
        journal: Path of the journal; nobody has it open.
        index: Of this journal.
        before: From `log_evidence`.

    Returns:
        What may be missing, if that can be told from a crash no more; empty when all is well.

    Raises:
        DamagedJournalError: Commits are lost.
        sqlite3.Error: The journal cannot be read.
    """
    problem, doubt = _judge(before, _read_by_sqlite(journal, index) if before.commits else 0)
    if problem:
        raise DamagedJournalError(
            f"{journal} is damaged: of its write-ahead log not everything can be read: {problem}; "
            "see docs/operations.md, section Damaged journals"
        )
    return doubt


def _read_by_sqlite(journal: Path, index: LogIndex) -> int:
    # Whoever closes a journal last that could write to it moves what is readable of the log and removes the rest: a hub that refused a
    # damaged one, and is started again, would find nothing wrong any more.
    uri = f"{journal.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return index.mark().frames


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
    certain, may_wait = (before.counted, 1) if before.synced is None else (before.synced, MOST_UNSYNCED)
    if before.problem:
        return before.problem, ""
    if certain > read:
        return (
            f"{certain} of its frames {'counted' if before.synced is None else 'were synced'}, {read} are readable",
            "",
        )
    if len(lost) > may_wait:
        return f"after frame {read} come {len(lost)} commits that cannot be read", ""
    if lost:
        return (
            "",
            f"the write-ahead log is not whole: commits that end with its frames {', '.join(map(str, lost))} are not",
        )
    if before.counted > read:
        return (
            "",
            f"the write-ahead log is not whole: {before.counted} of its frames counted, {read} are readable",
        )
    return "", ""


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
