"""Blobs in memory; what is said of every store is in `blobs`."""

import hashlib
from collections.abc import Collection

from hetero_rl.errors import DamagedError, InvalidMessageError, RefusedError
from hetero_rl.hub.blobs import BlobStore, Upload, check_write, most_unfinished, not_found
from hetero_rl.wire.messages import BlobReference

__all__ = ["MemoryBlobStore"]


class MemoryBlobStore(BlobStore):
    """Blobs in memory, for tests."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._partial: dict[str, bytearray] = {}
        self._owners: dict[str, object] = {}

    def has(self, blob: BlobReference) -> bool:
        """See `BlobStore`."""
        return len(self._blobs.get(blob.digest, b"")) == blob.size and blob.digest in self._blobs

    def held_bytes(self, blob: BlobReference) -> int:
        """See `BlobStore`."""
        if self.has(blob):
            return blob.size
        return min(len(self._partial.get(blob.digest, b"")), most_unfinished(blob))

    def open_upload(self, blob: BlobReference) -> Upload:
        """See `BlobStore`."""
        return _MemoryUpload(blob, self._blobs, self._partial, self._owners)

    def size(self, digest: str) -> int:
        """See `BlobStore`."""
        if digest not in self._blobs:
            raise not_found(digest)
        return len(self._blobs[digest])

    def is_proven(self, digest: str) -> bool:
        """See `BlobStore`: memory is as it was written."""
        return digest in self._blobs

    def prove(self, digest: str) -> None:
        """See `BlobStore`."""
        if digest not in self._blobs:
            raise not_found(digest)

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """See `BlobStore`."""
        if digest not in self._blobs:
            raise not_found(digest)
        return self._blobs[digest][offset : offset + size]

    def digests(self) -> Collection[str]:
        """See `BlobStore`."""
        return (self._blobs.keys() | self._partial.keys()) - self._owners.keys()

    def withdraw(self, digest: str) -> None:
        """See `BlobStore`."""
        self._blobs.pop(digest, None)
        self._partial.pop(digest, None)

    def purge(self, digest: str) -> None:
        """See `BlobStore`."""

    def delete(self, digest: str) -> None:
        """See `BlobStore`."""
        self._blobs.pop(digest, None)


class _MemoryUpload(Upload):
    def __init__(
        self,
        blob: BlobReference,
        blobs: dict[str, bytes],
        partial: dict[str, bytearray],
        owners: dict[str, object],
    ) -> None:
        self._blob, self._blobs, self._partial, self._owners = blob, blobs, partial, owners
        self._bytes = partial.setdefault(blob.digest, bytearray())
        owners[blob.digest] = self
        del self._bytes[most_unfinished(blob) :]
        self.held = len(self._bytes)

    def write(self, offset: int, data: bytes) -> None:
        if self._owners.get(self._blob.digest) is not self:
            raise RefusedError(f"another upload of blob {self._blob.digest} has taken over", "FENCED")
        check_write(self.held, self._blob.size, offset, data)
        self._bytes += data
        self.held += len(data)

    def finish(self) -> None:
        if self.held != self._blob.size:
            raise InvalidMessageError(
                f"{self.held} of {self._blob.size} bytes came: go on from there", "PutBlobRequest.data"
            )
        del self._partial[self._blob.digest]
        if hashlib.sha256(self._bytes).hexdigest() != self._blob.digest:
            raise DamagedError(
                f"the bytes uploaded as blob {self._blob.digest} have another digest: send them again"
            )
        self._blobs[self._blob.digest] = bytes(self._bytes)

    def close(self) -> None:
        if self._owners.get(self._blob.digest) is self:
            del self._owners[self._blob.digest]
