"""Blobs as files of a directory; what is said of every store is in `blobs`."""

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import BinaryIO

from hetero_rl.errors import DamagedError, DiskFullError, InvalidMessageError, RefusedError, StorageError
from hetero_rl.failpoints import reach
from hetero_rl.files import make_directory, sync_directory
from hetero_rl.hub.blobs import BlobStore, Upload, check_write, most_unfinished, not_found
from hetero_rl.wire.messages import BlobReference

__all__ = ["LocalBlobStore"]

_READ_BYTES = 2**20


def _disk_error(error: OSError, path: Path) -> StorageError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFullError(f"no space left for {path}; what was stored before is intact: free some space")
    return StorageError(f"{path} cannot be written: {error.strerror or error}")


class LocalBlobStore(BlobStore):
    """Blobs as files of a directory.

    Args:
        directory: Made if it does not exist. One process at a time may use it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._partial = directory / "partial"
        make_directory(self._partial)
        self._lock = threading.Lock()
        self._sizes = self._list_kept()
        self._unfinished = {path.name for path in self._partial.iterdir()}
        self._owners: dict[str, object] = {}
        self._proven: dict[str, object] = {}
        """What each blob that was hashed looked like then."""

    def has(self, blob: BlobReference) -> bool:
        """See `BlobStore`."""
        return self._sizes.get(blob.digest) == blob.size

    def held_bytes(self, blob: BlobReference) -> int:
        """See `BlobStore`."""
        if self.has(blob):
            return blob.size
        with contextlib.suppress(FileNotFoundError):
            return min((self._partial / blob.digest).stat().st_size, most_unfinished(blob))
        return 0

    def open_upload(self, blob: BlobReference) -> Upload:
        """See `BlobStore`."""
        return _LocalUpload(self, blob)

    def size(self, digest: str) -> int:
        """See `BlobStore`."""
        if digest not in self._sizes:
            raise not_found(digest)
        return self._sizes[digest]

    def is_proven(self, digest: str) -> bool:
        """See `BlobStore`."""
        seen = self._proven.get(digest)
        return seen is not None and seen == self._look_of_kept(digest)

    def prove(self, digest: str) -> None:
        """See `BlobStore`."""
        size, look = self.size(digest), self._look_of_kept(digest)
        found = self._hash_of_kept(digest)
        if found == digest:
            self._proven[digest] = look
            return
        self.delete(digest)
        what = f"its {size} bytes have digest {found}" if found else "its bytes are gone"
        raise DamagedError(
            f"blob {digest} in {self._directory} was damaged: {what}; it was removed and has to be uploaded again"
        )

    def _hash_of_kept(self, digest: str) -> str:
        """Digest of what is there; empty when nothing is."""
        hashed, offset = hashlib.sha256(), 0
        try:
            while data := self._read_kept(digest, offset, _READ_BYTES):
                hashed.update(data)
                offset += len(data)
        except FileNotFoundError:
            return ""
        return hashed.hexdigest()

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """See `BlobStore`."""
        if digest not in self._sizes:
            raise not_found(digest)
        try:
            return self._read_kept(digest, offset, size)
        except FileNotFoundError as error:
            raise not_found(digest) from error

    @contextlib.contextmanager
    def opened(self, digest: str) -> Generator[Callable[[int, int], bytes | memoryview]]:
        """See `BlobStore`: one file and one buffer for all pieces."""
        if digest not in self._sizes:
            raise not_found(digest)
        buffer = bytearray()

        def piece(offset: int, size: int) -> memoryview:
            nonlocal buffer
            if len(buffer) < size:
                buffer = bytearray(size)
            view = memoryview(buffer)[:size]
            return view[: os.preadv(file.fileno(), [view], offset)]

        try:
            with (self._directory / digest).open("rb", buffering=0) as file:
                yield piece
        except FileNotFoundError as error:
            raise not_found(digest) from error

    def digests(self) -> Collection[str]:
        """See `BlobStore`."""
        with self._lock:
            return (self._sizes.keys() | self._unfinished) - self._owners.keys()

    def withdraw(self, digest: str) -> None:
        """See `BlobStore`."""
        with self._lock:
            self._sizes.pop(digest, None)
            self._unfinished.discard(digest)

    def purge(self, digest: str) -> None:
        """See `BlobStore`."""
        with self._lock:
            if digest in self._owners or digest in self._unfinished:
                return
            (self._partial / digest).unlink(missing_ok=True)
            back = digest in self._sizes
        if not back:
            self._remove_kept(digest)

    def delete(self, digest: str) -> None:
        """See `BlobStore`."""
        with self._lock:
            self._sizes.pop(digest, None)
            self._proven.pop(digest, None)
        self._remove_kept(digest)

    def own(self, digest: str, upload: object) -> None:
        """Makes `upload` the one that may write `digest`."""
        with self._lock:
            self._owners[digest] = upload
            self._unfinished.add(digest)

    def disown(self, digest: str, upload: object) -> None:
        """Ends an upload's right to write, if it still has it."""
        with self._lock:
            if self._owners.get(digest) is upload:
                del self._owners[digest]
            if not (self._partial / digest).exists():
                self._unfinished.discard(digest)

    def check_owner(self, digest: str, upload: object) -> None:
        """Raises RefusedError when a newer upload took the digest over."""
        if self._owners.get(digest) is not upload:
            raise RefusedError(
                f"another upload of blob {digest} has taken over: ask how much is held", "FENCED"
            )

    def partial_path(self, digest: str) -> Path:
        """Where the bytes of an unfinished upload are."""
        return self._partial / digest

    def publish(self, blob: BlobReference) -> None:
        """Makes a checked and synced upload visible under its digest, durably."""
        reach("blob.before_rename")
        self._keep(self._partial / blob.digest, blob)
        look = self._look_of_kept(blob.digest)
        with self._lock:
            self._sizes[blob.digest] = blob.size
            self._proven[blob.digest] = look

    # --- where complete blobs are; a store that keeps them elsewhere replaces these five -----------------------------

    def _list_kept(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self._directory.iterdir() if path.is_file()}

    def _keep(self, partial: Path, blob: BlobReference) -> None:
        partial.replace(self._directory / blob.digest)
        reach("blob.after_rename")
        sync_directory(self._directory)

    def _look_of_kept(self, digest: str) -> object:
        """What can be seen of a blob without reading it; None when it is gone."""
        try:
            found = (self._directory / digest).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read_kept(self, digest: str, offset: int, size: int) -> bytes:
        with (self._directory / digest).open("rb") as file:
            return os.pread(file.fileno(), size, offset)

    def _remove_kept(self, digest: str) -> None:
        (self._directory / digest).unlink(missing_ok=True)


class _LocalUpload(Upload):
    def __init__(self, store: LocalBlobStore, blob: BlobReference) -> None:
        self._store = store
        self._blob = blob
        self._path = store.partial_path(blob.digest)
        self._hash = hashlib.sha256()
        store.own(blob.digest, self)
        try:
            self._file = self._path.open("a+b")
            self._file.truncate(min(self._path.stat().st_size, most_unfinished(blob)))
            self.held = self._rehash(self._file)
        except OSError as error:
            raise _disk_error(error, self._path) from error

    def _rehash(self, file: BinaryIO) -> int:
        file.seek(0)
        held = 0
        while data := file.read(_READ_BYTES):
            self._hash.update(data)
            held += len(data)
        return held

    def write(self, offset: int, data: bytes) -> None:
        self._store.check_owner(self._blob.digest, self)
        check_write(self.held, self._blob.size, offset, data)
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            # A part of the data may be in the file: what counts is what was acknowledged.
            with contextlib.suppress(OSError):
                os.truncate(self._path, self.held)
            raise _disk_error(error, self._path) from error
        self._hash.update(data)
        self.held += len(data)

    def finish(self) -> None:
        self._store.check_owner(self._blob.digest, self)
        if self.held != self._blob.size:
            raise InvalidMessageError(
                f"{self.held} of {self._blob.size} bytes came: go on from there", "PutBlobRequest.data"
            )
        try:
            if self._hash.hexdigest() != self._blob.digest:
                self._path.unlink()
                raise DamagedError(
                    f"the bytes uploaded as blob {self._blob.digest} have digest {self._hash.hexdigest()}: they were "
                    "thrown away, send them again"
                )
            os.fsync(self._file.fileno())
            self._store.publish(self._blob)
        except StorageError:
            raise
        except OSError as error:
            raise _disk_error(error, self._path) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # every byte that counts was flushed by write
            self._file.close()
        self._store.disown(self._blob.digest, self)
