"""Blobs on local disk: written as a stream, named by their content when complete."""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hetero_rl.wire.messages import BlobReference

__all__ = ["BLOB_BYTES", "BlobFile", "BlobWriter", "Placement"]

BLOB_BYTES = 64 * 2**20
"""A blob is closed before it would grow beyond this; a larger tensor gets a blob of its own."""
_CHUNK_BYTES = 2 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class BlobFile:
    """A complete blob in a local file that is named by its digest."""

    reference: BlobReference
    path: Path

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """The bytes from an offset, in chunks fit for one message."""
        with self.path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where the coded bytes of a tensor lie."""

    blob_index: int
    offset: int
    size: int


class BlobWriter:
    """Packs coded tensors into blobs of bounded size in a directory.

    A blob is written under a temporary name and renamed to its digest when it is closed; leaving the `with` block by
    an exception removes what is incomplete. Memory held is what one call to `add` is given.
    """

    def __init__(self, directory: Path, blob_bytes: int = BLOB_BYTES) -> None:
        self._directory = directory
        self._blob_bytes = blob_bytes
        self._blobs: list[BlobFile] = []
        self._file: IO[bytes] | None = None
        self._size = 0
        self._digest = hashlib.sha256()
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def blobs(self) -> tuple[BlobFile, ...]:
        """The blobs that are complete, in the order of their index."""
        return tuple(self._blobs)

    def cut(self) -> None:
        """Closes the present blob, so that what comes next does not change its content."""
        self._close_blob()

    def add(self, data: bytes | bytearray | memoryview) -> Placement:
        """Appends the coded bytes of one tensor and says where they lie; no bytes lie at (0, 0)."""
        size = memoryview(data).nbytes
        if not size:
            return Placement(0, 0, 0)
        if self._size and self._size + size > self._blob_bytes:
            self._close_blob()
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(  # ruff: ignore[open-file-with-context-handler] - open across calls; closed in _close_blob and __exit__
                dir=self._directory, prefix="blob-", suffix=".partial", delete=False
            )
        placement = Placement(len(self._blobs), self._size, size)
        self._file.write(data)
        self._digest.update(data)
        self._size += size
        return placement

    def _close_blob(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest = self._digest.hexdigest()
        path = Path(self._file.name).rename(self._directory / digest)
        self._blobs.append(BlobFile(BlobReference(digest, self._size), path))
        self._file, self._size, self._digest = None, 0, hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close_blob()
        elif self._file is not None:
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            self._file = None
