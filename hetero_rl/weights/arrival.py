"""Coded bytes that may still be on their way, and digests that are computed beside the decoding. Standard library only.

    decoding thread:   read (waits for bytes) ─► decode a part of a tensor ─► read ─► decode the next ─► ... ─► all right?
                                                      └────► verifying thread: SHA-256 of it ─► ... ─────────────┘
                                                                 └─ a tensor is right ─► `verified`

The verifying thread ends with the `with` block around it; what is under way is finished, what waits is dropped.
"""

import hashlib
import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from hetero_rl.errors import DamagedError
from hetero_rl.weights.digests import check_blob_file
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.wire.messages import BlobReference, TensorEntry

__all__ = ["BlobSource", "FileSource", "Verifier"]


class BlobSource(Protocol):
    """The bytes of one blob, complete or on their way. For one thread."""

    def read(self, offset: int, size: int) -> memoryview:
        """Bytes within the blob, once they are there; raises what went wrong on their way."""

    def check(self) -> None:
        """Waits for the end of the blob; raises DamagedError when its digest is wrong, or what went wrong on its way."""


class FileSource:
    """A blob in a file. The digest is checked at once.

    Raises:
        DamagedError: The file holds something else.
    """

    def __init__(self, path: Path, blob: BlobReference) -> None:
        check_blob_file(path, blob)
        self._data = memoryview(b"")
        if blob.size:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read(self, offset: int, size: int) -> memoryview:
        """See `BlobSource`."""
        return self._data[offset : offset + size]

    def check(self) -> None:
        """See `BlobSource`."""


class Verifier:
    """Holds tensors against their digests on a thread of its own, in the order in which they are added.

    Args:
        describe: Says what is wrong, given the tensor's entry and the digest found.
        seconds: Grows by the time of verifying.
        verified: Called on that thread with each tensor that is right, and its bytes.
    """

    def __init__(
        self,
        describe: Callable[[TensorEntry, str], str],
        seconds: StageSeconds,
        verified: Callable[[TensorEntry, memoryview], None] | None = None,
    ) -> None:
        self._describe = describe
        self._seconds = seconds
        self._verified = verified
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verify")
        self._under_way: list[Future[None]] = []
        self._hash = hashlib.sha256()
        """Of the tensor of which a part was added last; the thread's own."""

    def add(self, entry: TensorEntry, data: memoryview, start: int, stop: int) -> None:
        """The next bytes of a tensor, from where the part before ended; they stay as they are from now on.

        Raises:
            DamagedError: An earlier tensor did not have its entry's digest.
        """
        self._submit(self._verify, entry, data, start, stop)

    def add_unchanged(self, entry: TensorEntry, data: memoryview) -> None:
        """A tensor of which it is known that it is right; raises as `add` does."""
        if self._verified is not None:
            self._submit(self._verified, entry, data)

    def finish(self) -> None:
        """Waits for all; raises DamagedError naming the first tensor that is wrong."""
        for verified in self._under_way:
            verified.result()

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        while self._under_way and self._under_way[0].done():
            self._under_way.pop(0).result()
        self._under_way.append(self._thread.submit(work, *arguments))

    def _verify(self, entry: TensorEntry, data: memoryview, start: int, stop: int) -> None:
        with self._seconds.verifying():
            if start == 0:
                self._hash = hashlib.sha256()
            self._hash.update(data[start:stop])
            if stop < data.nbytes:
                return
            found = self._hash.hexdigest()
        if found != entry.digest:
            raise DamagedError(self._describe(entry, found))
        if self._verified is not None:
            self._verified(entry, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
