"""Blobs of the weight service as local files. A download that breaks goes on where it stopped, also after a restart."""

import asyncio
import contextlib
import errno
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from hetero_rl.errors import (
    DamagedError,
    DiskFullError,
    HeteroRLError,
    RefusedError,
    StorageError,
    UnreachableError,
)
from hetero_rl.weights.digests import is_digest
from hetero_rl.wire.messages import BlobReference
from hetero_rl.wire.ports import WeightPort
from hetero_rl.worker.arriving import ArrivingBlob
from hetero_rl.worker.link import Link

__all__ = ["BlobCache"]

_PARTIAL = ".partial"
_DOWNLOADS_AT_ONCE = 3


class BlobCache:
    """A directory of blobs, each under its digest.

    Args:
        directory: Made when missing; used by one process at a time.
        port: Where blobs come from.
        link: Repeats what may pass.
    """

    def __init__(self, directory: Path, port: WeightPort, link: Link) -> None:
        self._directory = directory
        self._port = port
        self._link = link
        self.fetched_bytes = 0
        """Bytes that came over the line so far."""
        self._arriving: dict[str, ArrivingBlob] = {}
        directory.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def room(self) -> Generator[Path]:
        """The directory, for other files that are named by their digest; `keep_only` decides about them too.

        Raises:
            StorageError: They cannot be written.
        """
        try:
            yield self._directory
        except HeteroRLError:
            raise
        except OSError as error:
            raise _cannot_write(self._directory, error) from error

    async def fetch(self, blob: BlobReference) -> Path:
        """The file of a blob, downloaded when it is not there. Whoever reads it checks the digest.

        Raises:
            DamagedError: More bytes came than the blob has; nothing of them is kept.
            RefusedError: The hub does not have the blob any more.
            StorageError: It cannot be written.
        """
        if not is_digest(blob.digest):
            raise DamagedError(f"blob digest {blob.digest!r} is not a SHA-256 in hexadecimal")
        path = self._directory / blob.digest
        if not _is_there(path, blob):
            partial = path.with_suffix(_PARTIAL)
            await self._link.repeat(f"download of {blob.digest[:12]}", lambda: self._continue(blob, partial))
            _finish(partial, path, blob)
        if blob.digest in self._arriving:
            self._arriving[blob.digest].ended(path)
        return path

    @contextlib.contextmanager
    def arriving(self, blobs: Iterable[BlobReference]) -> Generator[Mapping[str, ArrivingBlob]]:
        """Blobs by digest, to be read on a thread while `fetch_all` brings them; nobody reads any more when this ends."""
        self._arriving = {
            blob.digest: ArrivingBlob(blob, self._directory / f"{blob.digest}{_PARTIAL}") for blob in blobs
        }
        try:
            yield self._arriving
        finally:
            for source in self._arriving.values():
                source.close()
            self._arriving = {}

    async def fetch_all(self, blobs: Iterable[BlobReference]) -> Mapping[str, Path]:
        """The files of blobs by digest; a few are downloaded at once, so that the line never waits for a question.

        Raises:
            HeteroRLError: What the first failure is; the other downloads are given up, and go on at the next call.
        """
        at_once = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)

        async def fetch(blob: BlobReference) -> tuple[str, Path]:
            async with at_once:
                return blob.digest, await self.fetch(blob)

        tasks = [asyncio.create_task(fetch(blob)) for blob in {blob.digest: blob for blob in blobs}.values()]
        try:
            return dict(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def keep_only(self, blobs: Iterable[BlobReference]) -> None:
        """Removes every other file."""
        kept = {blob.digest for blob in blobs}
        for path in self._directory.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def forget(self, blobs: Iterable[BlobReference]) -> None:
        """Removes files whose bytes turned out to be others."""
        for blob in blobs:
            (self._directory / blob.digest).unlink(missing_ok=True)

    async def _continue(self, blob: BlobReference, partial: Path) -> None:
        """Appends what is missing; raises UnreachableError when the stream ended early."""
        with _appended(partial) as target:
            try:
                await self._append(blob, target)
            except RefusedError as error:
                if error.reason == "DIGEST_MISMATCH":  # what a relay has sent so far is not the blob
                    target.truncate(0)
                    self._tell(blob, 0)
                raise
            size = target.tell()
        if size < blob.size:
            raise UnreachableError(f"blob {blob.digest} ended after {size} of {blob.size} bytes")

    async def _append(self, blob: BlobReference, target: BinaryIO) -> None:
        size = target.tell()
        if size >= blob.size:
            return
        async for chunk in self._port.fetch_blob(blob.digest, size):
            # Writes are of one chunk into the page cache; a thread for each would cost more.
            target.write(chunk)
            target.flush()
            size += len(chunk)
            self.fetched_bytes += len(chunk)
            if size > blob.size:
                break
            self._tell(blob, size)

    def _tell(self, blob: BlobReference, size: int) -> None:
        """Says to whoever decodes the blob how much of it is there."""
        if blob.digest in self._arriving:
            self._arriving[blob.digest].grew(size)


def _is_there(path: Path, blob: BlobReference) -> bool:
    return path.is_file() and path.stat().st_size == blob.size


def _finish(partial: Path, path: Path, blob: BlobReference) -> None:
    """Gives a complete download its name."""
    if partial.stat().st_size > blob.size:
        partial.unlink()
        raise DamagedError(f"blob {blob.digest} is longer than its {blob.size} bytes; nothing was kept")
    partial.replace(path)


@contextlib.contextmanager
def _appended(path: Path) -> Generator[BinaryIO, None, None]:
    """A file opened for appending; what the file system raises becomes this package's errors."""
    try:
        with path.open("ab") as target:
            yield target
    except HeteroRLError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
    kind = DiskFullError if error.errno == errno.ENOSPC else StorageError
    return kind(f"cannot write {path}: {error}")
