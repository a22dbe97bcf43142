"""Blobs on a relay's disk: fetched once however many ask, served while they arrive, proven before their end is given out.

    worker ── reading(digest) ──► complete file? ── yes ──────────────────────────► chunks of the file
    worker ── reading(digest) ──┐    │ no
    worker ── reading(digest) ──┴──► one download (a task) ──► partial/DIGEST ──► SHA-256 right? ──► DIGEST
         followers read what is there, all but the newest chunk ◄──┘                    └─ no: thrown away,
         and wait for the rest on the download's condition                                 followers get an error

A download belongs to nobody: it goes on when its followers leave, and it continues a partial file that an earlier one, or
an earlier life of the relay, left. Files from an earlier life are hashed before they are served. Over the bound the blobs
that were used longest ago go; those being read or downloaded stay, so the bound can be exceeded by what is under way.
Everything here runs on the event loop; hashing of old files and reads run on threads. Shutdown: `close` cancels downloads.
"""

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO, Protocol

from hetero_rl.errors import DamagedError, DiskFullError, HeteroRLError, RefusedError, StorageError
from hetero_rl.weights.digests import digest_of_file, is_digest
from hetero_rl.wire.channels import CHUNK_BYTES, chunk_bytes
from hetero_rl.wire.ports import WeightPort

__all__ = ["Reader", "RelayCache"]

_logger = logging.getLogger(__name__)

_READ_BYTES = 2**20
_PARTIAL_SECONDS = 86_400.0


class RelayCache:
    """A bounded directory of blobs in front of a weight service.

    Args:
        directory: Made when missing; used by one process at a time.
        port: Where blobs come from.
        most_bytes: Bound on what is kept.
    """

    def __init__(self, directory: Path, port: WeightPort, most_bytes: int) -> None:
        self._directory = directory
        self._partial = directory / "partial"
        self._port = port
        self._most_bytes = most_bytes
        self._downloads: dict[str, _Download] = {}
        self._readers: Counter[str] = Counter()
        self._proven: set[str] = set()
        self.fetched_bytes = 0
        """Bytes that came over the line so far."""
        self._partial.mkdir(parents=True, exist_ok=True)
        _remove_old(self._partial)
        found = [path for path in directory.iterdir() if path.is_file() and is_digest(path.name)]
        found.sort(key=lambda path: path.stat().st_mtime)
        self._sizes = {path.name: path.stat().st_size for path in found}
        """Size of each complete blob; used longest ago first."""

    @contextlib.asynccontextmanager
    async def reading(self, digest: str) -> AsyncGenerator["Reader"]:
        """Gives access to a blob's bytes; it is not removed meanwhile.

        Raises:
            RefusedError: The digest is none.
        """
        if not is_digest(digest):
            raise RefusedError(f"blob {digest[:80]!r} is not stored here", "NOT_FOUND")
        self._readers[digest] += 1
        try:
            if digest in self._sizes and await self._is_right(digest):
                size = self._use(digest)
                with (self._directory / digest).open("rb") as file:
                    yield _FileReader(file, size)
            else:
                with contextlib.closing(_FollowingReader(self._download_of(digest))) as reader:
                    yield reader
        finally:
            self._readers[digest] -= 1
            if not self._readers[digest]:
                del self._readers[digest]

    async def close(self) -> None:
        """Ends downloads; what has arrived stays for the next life."""
        downloads = list(self._downloads.values())
        for download in downloads:
            download.task.cancel()
        await asyncio.gather(*(download.task for download in downloads), return_exceptions=True)

    @property
    def kept_bytes(self) -> int:
        """Bytes of complete blobs."""
        return sum(self._sizes.values())

    def _download_of(self, digest: str) -> "_Download":
        download = self._downloads.get(digest)
        if download is None:
            download = _Download(digest, self._partial / digest)
            download.task = asyncio.create_task(self._run(download), name=f"relay download {digest[:12]}")
            self._downloads[digest] = download
        return download

    async def _run(self, download: "_Download") -> None:
        """Fetches a blob to its end, proves it and gives it its name."""
        try:
            await self._fetch(download)
            self._adopt(download)
            await download.end(None)
        except HeteroRLError as error:
            await download.end(error)
        except OSError as error:
            await download.end(_disk_error(error, download.path))
        except asyncio.CancelledError:
            await download.end(RefusedError("the relay is shutting down", "SHUTTING_DOWN"))
            raise
        finally:
            del self._downloads[download.digest]

    async def _fetch(self, download: "_Download") -> None:
        hashed = hashlib.sha256()
        with download.path.open("a+b") as file:
            held = await asyncio.to_thread(_hash_what_is_there, file, hashed)
            await download.grow(held, hold_back=min(held, CHUNK_BYTES))
            try:
                await self._append(download, file, hashed)
            except RefusedError as error:
                if error.reason in {"NOT_FOUND", "INVALID_FIELD"}:  # gone, or shorter than what lies here
                    download.path.unlink()
                raise
            await asyncio.to_thread(os.fsync, file.fileno())
        if hashed.hexdigest() != download.digest:
            download.path.unlink()
            raise DamagedError(
                f"what came as blob {download.digest} has digest {hashed.hexdigest()}: it was thrown away"
            )

    async def _append(self, download: "_Download", file: BinaryIO, hashed: "hashlib._Hash") -> None:
        """Adds what is missing as it arrives."""
        async for chunk in self._port.fetch_blob(download.digest, download.size):
            self._make_room(len(chunk))
            file.write(chunk)
            file.flush()
            hashed.update(chunk)
            self.fetched_bytes += len(chunk)
            await download.grow(download.size + len(chunk), hold_back=len(chunk))

    def _adopt(self, download: "_Download") -> None:
        """Makes a proven blob one of those that are kept."""
        path = self._directory / download.digest
        download.path.replace(path)
        download.path = path
        self._proven.add(download.digest)
        self._sizes[download.digest] = download.size
        self._make_room(0)

    def _make_room(self, coming: int) -> None:
        """Removes blobs that were used longest ago until what is kept and what comes fit into the bound."""
        arriving = sum(item.size for digest, item in self._downloads.items() if digest not in self._sizes)
        total = self.kept_bytes + arriving + coming
        for digest in list(self._sizes):
            if total <= self._most_bytes:
                return
            if not self._readers[digest]:
                total -= self._sizes.pop(digest)
                self._proven.discard(digest)
                (self._directory / digest).unlink(missing_ok=True)

    def _use(self, digest: str) -> int:
        """Notes that a blob is used now; returns its size."""
        size = self._sizes.pop(digest)
        self._sizes[digest] = size
        with contextlib.suppress(OSError):
            os.utime(self._directory / digest)
        return size

    async def _is_right(self, digest: str) -> bool:
        """Whether a complete file has its digest; hashed once in each life of the relay, removed when it has another."""
        if digest in self._proven:
            return True
        path = self._directory / digest
        found = await asyncio.to_thread(digest_of_file, path)
        if found == digest:
            self._proven.add(digest)
            return True
        _logger.warning("%s has changed on the disk and is fetched again", path)
        self._sizes.pop(digest, None)
        path.unlink(missing_ok=True)
        return False


class _Download:
    """A blob that arrives, and those who wait for its bytes."""

    def __init__(self, digest: str, path: Path) -> None:
        self.digest = digest
        self.path = path
        self.size = 0
        """Bytes that have arrived."""
        self.ended = False
        self.task: asyncio.Task[None]
        self._readable = 0
        self._error: HeteroRLError | None = None
        self._changed = asyncio.Condition()

    async def grow(self, size: int, *, hold_back: int) -> None:
        """Lets followers read all but the last bytes of what has arrived."""
        async with self._changed:
            self.size = size
            self._readable = size - hold_back
            self._changed.notify_all()

    async def end(self, error: HeteroRLError | None) -> None:
        """Lets followers read the rest, or tells them why there is none."""
        async with self._changed:
            self.ended = True
            self._error = error
            self._readable = self.size if error is None else self._readable
            self._changed.notify_all()

    async def beyond(self, offset: int) -> int:
        """Waits until there is something to read after an offset; returns up to where.

        The offset itself means that the blob ends there. Raises what went wrong with the download.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.ended or self._readable > offset)
            if self._error is not None:
                raise self._error
            return max(offset, self._readable)


class Reader(Protocol):
    """Access to the bytes of one blob."""

    async def read(self, offset: int) -> bytes:
        """A chunk from an offset; empty at the end.

        Raises:
            RefusedError: The hub does not have the blob, or is not to be asked.
            DamagedError: What came was something else; it was thrown away.
            UnreachableError: The hub does not answer.
            StorageError: The disk takes no more, or lost what it had.
        """


class _FileReader:
    """Reads a complete file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    async def read(self, offset: int) -> bytes:
        """See `Reader`."""
        return await _read(self._file, offset, self._size, chunk_bytes(self._size))


class _FollowingReader:
    """Reads a file that grows."""

    def __init__(self, download: "_Download") -> None:
        self._download = download
        self._file: BinaryIO | None = None

    async def read(self, offset: int) -> bytes:
        """See `Reader`."""
        end = await self._download.beyond(offset)
        if self._file is None:  # the same file still when it has got another name
            self._file = self._download.path.open("rb")
        return await _read(self._file, offset, end)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()


async def _read(file: BinaryIO, offset: int, end: int, most: int = CHUNK_BYTES) -> bytes:
    """A chunk of a file that has at least `end` bytes."""
    size = max(0, min(most, end - offset))
    chunk = await asyncio.to_thread(os.pread, file.fileno(), size, offset)
    if size and not chunk:
        raise StorageError(f"{file.name} ends at {offset} of {end} bytes")
    return chunk


def _remove_old(directory: Path) -> None:
    """Removes partial files that no worker has asked for since a day: their blobs are hardly needed any more."""
    horizon = time.time() - _PARTIAL_SECONDS
    for path in directory.iterdir():
        if path.stat().st_mtime < horizon:
            path.unlink()


def _hash_what_is_there(file: BinaryIO, hashed: "hashlib._Hash") -> int:
    file.seek(0)
    held = 0
    while data := file.read(_READ_BYTES):
        hashed.update(data)
        held += len(data)
    return held


def _disk_error(error: OSError, path: Path) -> StorageError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFullError(
            f"no space left for {path}: free some, or give the relay a smaller --cache-bytes"
        )
    return StorageError(f"{path} cannot be written: {error.strerror or error}")
