"""How much of the write-ahead log is certainly on the disk, in a file of its own beside it. Standard library only.

    journal.sqlite-synced    salts of the log's round │ frames that were synced │ CRC-32 of both

The hub commits a few transactions ahead of its syncs, and a power cut takes what was not synced. So a log whose end cannot be read
says nothing by itself: it may be what the cut left of commits that nobody was told of, or an acknowledged commit that the disk
damaged. The note tells one from the other. It is written after each sync and not synced itself: an old note promises less, never more.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Self

from hetero_rl.files import sync_directory

__all__ = ["MOST_UNSYNCED", "SyncNote", "read_note"]

MOST_UNSYNCED = 4
"""Commits that may wait for their sync, and that a power cut may take."""

_NOTE = struct.Struct(">8sI")
_SUM = struct.Struct(">I")


class SyncNote:
    """The note of a journal that this process has open; made where there is none.

    Args:
        journal: Path of the journal.
    """

    def __init__(self, journal: Path) -> None:
        path = _path(journal)
        made = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if made:
            sync_directory(journal.parent)

    def write(self, frames: int, salts: bytes) -> None:
        """Says that so many frames of this round are on the disk."""
        note = _NOTE.pack(salts, frames)
        os.pwrite(self._descriptor, note + _SUM.pack(zlib.crc32(note)), 0)

    def close(self) -> None:
        """Gives up the file, which stays."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def read_note(journal: Path) -> tuple[bytes, int] | None:
    """Salts of a round of the log and frames of it that were synced for certain, none when damaged; None without a note."""
    path = _path(journal)
    if not path.is_file():
        return None
    content = path.read_bytes()
    note, found = content[: _NOTE.size], content[_NOTE.size :]
    if len(content) != _NOTE.size + _SUM.size or _SUM.unpack(found)[0] != zlib.crc32(note):
        return b"", 0
    salts, frames = _NOTE.unpack(note)
    return salts, frames


def _path(journal: Path) -> Path:
    return journal.with_name(journal.name + "-synced")
