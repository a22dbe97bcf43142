"""Blobs named by their content: weight versions and model files.

    PutBlob ── upload.write(offset, data) ──► partial/DIGEST ── finish: size, SHA-256, fsync ──► rename ──► DIGEST
    FetchBlob ◄── read(digest, offset, size) ◄── is_proven, or prove: SHA-256 once in each life of the hub ◄───┘
                                                       └─ other bytes: the blob is deleted and may be uploaded again

Nothing is visible under its digest before its bytes were hashed to it and synced. What an earlier life of the hub left, or
what has changed on the disk, is hashed again before it is served. A broken upload stays and is continued.
Methods block on the disk: call them from a worker thread. One upload owns a digest at a time; a newer one takes it over,
and the older one's next write is refused, so that a sender that lost its connection can come back at once.
`tests/contract/test_blob_store.py` is the suite that every implementation passes.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator

from hetero_rl.errors import InvalidMessageError, RefusedError
from hetero_rl.wire.messages import BlobReference

__all__ = ["BlobStore", "Upload", "check_write", "most_unfinished", "not_found"]


class Upload(ABC):
    """One upload under way. `held` is the number of bytes the store has, from the first."""

    held: int

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Appends bytes; raises InvalidMessageError when `offset` is not `held` or the blob would grow beyond its size."""

    @abstractmethod
    def finish(self) -> None:
        """Makes the blob visible; raises DamagedError, and forgets the bytes, when they do not match the digest."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the upload; what was written stays for the next one."""


class BlobStore(ABC):
    """Bytes under their SHA-256.

    Constraints on every implementation:

    - A digest MUST be visible (`has`, `read`, `held_bytes` equal to the size) only after `finish` checked its bytes.
    - `held_bytes` MUST tell where an upload goes on, after a restart of the process too for a store on disk.
    - A finished blob MUST survive what a committed transaction survives.
    - `digests` and `withdraw` MUST NOT touch the disk: they are called between the hub's transactions.
    - `prove` MUST find any change of the bytes that happened while no hub was running.
    - `delete` MUST be harmless for an unknown digest; what is deleted is `NOT_FOUND` from then on.
    """

    @abstractmethod
    def has(self, blob: BlobReference) -> bool:
        """Whether the blob is complete. Does not touch the disk; callable from any thread."""

    @abstractmethod
    def held_bytes(self, blob: BlobReference) -> int:
        """Bytes held, from the first; the blob's size when it is complete."""

    @abstractmethod
    def open_upload(self, blob: BlobReference) -> Upload:
        """Begins or continues an upload of an incomplete blob."""

    @abstractmethod
    def size(self, digest: str) -> int:
        """Size of a complete blob; raises RefusedError NOT_FOUND."""

    @abstractmethod
    def is_proven(self, digest: str) -> bool:
        """Whether a complete blob was hashed in this life of the store and does not look changed since; hashes nothing."""

    @abstractmethod
    def prove(self, digest: str) -> None:
        """Hashes a complete blob; raises DamagedError naming it, and forgets it, when its bytes are others or gone.

        Raises RefusedError NOT_FOUND for one that is unknown already.
        """

    @abstractmethod
    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a complete blob from `offset`; empty at its end. Raises RefusedError NOT_FOUND."""

    @contextlib.contextmanager
    def opened(self, digest: str) -> Generator[Callable[[int, int], bytes | memoryview]]:
        """Gives a function like `read` of one blob, in less time for many pieces, for one thread at a time.

        What it returns is valid until its next call.
        """
        yield lambda offset, size: self.read(digest, offset, size)

    @abstractmethod
    def digests(self) -> Collection[str]:
        """Digests of which bytes are held, complete or not, and to which no upload is open. Does not touch the disk."""

    @abstractmethod
    def withdraw(self, digest: str) -> None:
        """Makes a blob unknown at once, without touching the disk; `purge` removes its bytes."""

    @abstractmethod
    def purge(self, digest: str) -> None:
        """Removes the bytes of a withdrawn blob and of what was left of its upload, unless it has come back meanwhile."""

    @abstractmethod
    def delete(self, digest: str) -> None:
        """Removes a blob."""


def not_found(digest: str) -> RefusedError:
    """The refusal of a digest that nothing is stored under."""
    return RefusedError(f"blob {digest} is not stored here", "NOT_FOUND", {"digest": digest})


def most_unfinished(blob: BlobReference) -> int:
    """Bytes that an unfinished upload may be said to hold.

    One that was said to hold all of them would never be sent again, and so never be checked and finished.
    """
    return max(0, blob.size - 1)


def check_write(held: int, size: int, offset: int, data: bytes) -> None:
    """Raises InvalidMessageError unless `data` follows what is held and stays within the blob's size. Bytes all."""
    if offset != held:
        raise InvalidMessageError(
            f"offset is {offset}, but {held} bytes are held: go on from there", "PutBlobRequest.offset"
        )
    if held + len(data) > size:
        raise InvalidMessageError(
            f"data would grow the blob to {held + len(data)} of {size} bytes", "PutBlobRequest.data"
        )
