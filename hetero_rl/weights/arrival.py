"""Coded bytes that may still be on their way, and digests that are computed beside the decoding. Standard library only.

    decoding thread:   read (waits for bytes) ─► decode a tensor ─► read ─► decode the next ─► ... ─► all right?
                                                      └────► verifying thread: SHA-256 ─► ... ───────────┘

The verifying thread ends with the `with` block around it; what is under way is finished, what waits is dropped.
"""

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from hetero_rl.errors import DamagedError
from hetero_rl.weights.digests import check_blob_file, digest_of_bytes
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
    """

    def __init__(self, describe: Callable[[TensorEntry, str], str], seconds: StageSeconds) -> None:
        self._describe = describe
        self._seconds = seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verify")
        self._under_way: list[Future[None]] = []

    def add(self, entry: TensorEntry, data: memoryview) -> None:
        """Bytes that must have the entry's digest and stay as they are; raises DamagedError for earlier ones that have not."""
        while self._under_way and self._under_way[0].done():
            self._under_way.pop(0).result()
        self._under_way.append(self._thread.submit(self._verify, entry, data))

    def finish(self) -> None:
        """Waits for all; raises DamagedError naming the first tensor that is wrong."""
        for verified in self._under_way:
            verified.result()

    def _verify(self, entry: TensorEntry, data: memoryview) -> None:
        with self._seconds.verifying():
            found = digest_of_bytes(data)
        if found != entry.digest:
            raise DamagedError(self._describe(entry, found))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
