"""A blob between the event loop that downloads it and the thread that decodes it.

    event loop: chunk ─► file ─► grew(size) ──┐                      ┌──► read(offset, size): bytes of the file
                       ended(path) or failed(error) ─► condition ────┤
                                                                     └──► check(): SHA-256 of all that was read, and the rest

The decoding thread waits on the condition; every wait ends with bytes or with an error, because whoever starts a download
says how it ended (`BlobCache.fetch`), and `WeightStage` calls `failed` when it gives up.
"""

import hashlib
import os
import threading
from pathlib import Path
from typing import BinaryIO

from hetero_rl.errors import DamagedError, HeteroRLError, StorageError
from hetero_rl.wire.messages import BlobReference

__all__ = ["ArrivingBlob"]

_READ_BYTES = 2**20


class ArrivingBlob:
    """A `BlobSource` of a file that grows.

    Args:
        blob: What is to come.
        partial: Where its bytes are until all have come. They keep their place when the file gets another name.
    """

    def __init__(self, blob: BlobReference, partial: Path) -> None:
        self._blob = blob
        self._path = partial
        self._size = 0
        self._complete = False
        self._error: HeteroRLError | None = None
        self._changed = threading.Condition()
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._hashed = 0

    # ---- on the event loop ----

    def grew(self, size: int) -> None:
        """So many bytes are in the file now. Fewer than before: they were other ones, and the blob begins again."""
        with self._changed:
            if size < self._size:
                self._error = DamagedError(f"blob {self._blob.digest} came as something else first")
            self._open()
            self._size = size
            self._changed.notify_all()

    def ended(self, path: Path) -> None:
        """All bytes are in the file of that name."""
        with self._changed:
            self._path, self._size, self._complete = path, self._blob.size, True
            self._open()
            self._changed.notify_all()

    def failed(self, error: HeteroRLError) -> None:
        """No more bytes will come; without effect when all have."""
        with self._changed:
            if not self._complete:
                self._error = self._error or error
            self._changed.notify_all()

    def _open(self) -> None:
        """Opens the file while it has this name for certain: on the loop, which is what renames it."""
        try:
            self._file = self._file or self._path.open("rb")
        except OSError as error:
            self._error = self._error or StorageError(f"cannot read {self._path}: {error}")

    # ---- on the decoding thread ----

    def read(self, offset: int, size: int) -> memoryview:
        """See `BlobSource`."""
        self._await(offset + size)
        data = self._pread(offset, size)
        if offset == self._hashed:
            self._hash.update(data)
            self._hashed += size
        return memoryview(data)

    def check(self) -> None:
        """See `BlobSource`."""
        path = self.path()
        while self._hashed < self._blob.size:
            piece = self._pread(self._hashed, min(_READ_BYTES, self._blob.size - self._hashed))
            self._hash.update(piece)
            self._hashed += len(piece)
        if self._hash.hexdigest() != self._blob.digest:
            raise DamagedError(
                f"blob at {path} has digest {self._hash.hexdigest()}, not {self._blob.digest}; fetch it again"
            )

    def path(self) -> Path:
        """Where the blob is, once all of it is there."""
        self._await(self._blob.size)
        with self._changed:
            while not self._complete and self._error is None:
                self._changed.wait()
            if not self._complete and self._error is not None:
                raise self._error
            return self._path

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()

    def _await(self, size: int) -> None:
        with self._changed:
            while self._size < size and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def _pread(self, offset: int, size: int) -> bytes:
        if self._file is None:
            raise StorageError(f"{self._path} was not opened")
        try:
            data = os.pread(self._file.fileno(), size, offset)
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error}") from error
        if len(data) != size:
            raise StorageError(f"{self._path} ends at {offset + len(data)} of {offset + size} bytes")
        return data
