"""Blobs in any store that fsspec knows (S3, OBS, GCS, a mounted file system, memory) instead of on the hub's disk.

    PutBlob ──► RUN/hub/blobs/partial/DIGEST ── size, SHA-256 right ──► URL/DIRECTORY/DIGEST, then the local file goes
    FetchBlob ◄── the hub ◄── range of URL/DIRECTORY/DIGEST

Workers fetch by way of the hub, so nobody but the hub needs the store's credentials, and every byte is under the hub's
access rules; with a relay in front it is read from the store once for each site. A journal belongs to one place: what
the first hub of a run was told is written down beside the journal and stays. Needs the extra `fsspec`, and the package of the
store's own protocol (s3fs, gcsfs, ...); credentials come from that package's environment, never from the URL.
"""

import contextlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from hetero_rl.errors import ConfigError, StorageError
from hetero_rl.hub.blobs import BlobStore
from hetero_rl.hub.local_blobs import LocalBlobStore
from hetero_rl.weights.digests import is_digest
from hetero_rl.wire.messages import BlobReference

__all__ = ["FsspecBlobStore", "open_blob_store"]

_PLACE_FILE = "blob_store.json"
_LOCAL = frozenset({"file", "local"})

_logger = logging.getLogger(__name__)


class FsspecBlobStore(LocalBlobStore):
    """Complete blobs at a URL, unfinished uploads on the local disk.

    Args:
        url: Directory in the store; used by one hub at a time. Made when missing.
        staging: Local directory of unfinished uploads.

    Raises:
        ConfigError: fsspec, or the package of the URL's protocol, is not installed, or the URL is none.
        StorageError: The store does not answer.
    """

    def __init__(self, url: str, staging: Path) -> None:
        self._url = url
        self._files, self._root = _file_system(url)
        self._is_local = bool(_LOCAL & set(_protocols(self._files)))
        super().__init__(staging)

    @contextlib.contextmanager
    def opened(self, digest: str) -> Generator[Callable[[int, int], bytes | memoryview]]:
        """See `BlobStore`."""
        yield lambda offset, size: self.read(digest, offset, size)

    def _list_kept(self) -> dict[str, int]:
        with self._answering():
            self._files.makedirs(self._root, exist_ok=True)
            found = self._files.ls(self._root, detail=True)
        sizes = {
            entry["name"].rpartition("/")[2]: entry["size"] for entry in found if entry["type"] == "file"
        }
        return {name: int(size) for name, size in sizes.items() if is_digest(name)}

    def _keep(self, partial: Path, blob: BlobReference) -> None:
        target = self._path(blob.digest)
        with self._answering():
            if self._is_local:
                _put_synced(partial, Path(target))
            else:  # an object is there when it is complete
                self._files.put_file(str(partial), target)
            size = self._files.size(target)
        if size != blob.size:
            raise StorageError(f"{self._url} holds {size} of {blob.size} bytes of blob {blob.digest}")
        partial.unlink()

    def _look_of_kept(self, digest: str) -> object:
        """Stores keep what they hold; each blob is read and hashed once in each life of the hub."""
        return self._sizes.get(digest)

    def _read_kept(self, digest: str, offset: int, size: int) -> bytes:
        end = min(offset + size, self._sizes.get(digest, 0))
        if offset >= end:
            return b""
        with self._answering():
            return bytes(self._files.cat_file(self._path(digest), start=offset, end=end))

    def _remove_kept(self, digest: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._answering():
            self._files.rm_file(self._path(digest))

    def _path(self, digest: str) -> str:
        return f"{self._root}/{digest}"

    @contextlib.contextmanager
    def _answering(self) -> Generator[None]:
        """What the libraries behind fsspec raise, as our own errors."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # every store's library has exceptions of its own
            raise StorageError(f"the blob store {self._url} failed: {error}") from error


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec.core
    except ImportError as error:
        raise ConfigError(
            f"weights.blob_store is {url!r}, which needs fsspec: pip install hetero-rl[fsspec]"
        ) from error
    try:
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"weights.blob_store is {url!r}, which cannot be opened: {error}") from error
    return files, str(root).rstrip("/")


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _put_synced(source: Path, target: Path) -> None:
    """Copies a file to where it is found after a power cut, or not at all."""
    scratch = target.with_suffix(".incoming")
    with source.open("rb") as reading, scratch.open("wb") as writing:
        shutil.copyfileobj(reading, writing, 2**20)
        writing.flush()
        os.fsync(writing.fileno())
    scratch.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def open_blob_store(url: str | None, directory: Path) -> BlobStore:
    """The blobs of a run.

    Args:
        url: `weights.blob_store`; None is the hub's disk, or where the run keeps them already.
        directory: RUN/hub.

    Raises:
        ConfigError: The run keeps its blobs elsewhere already, or the URL cannot be used.
        StorageError: The store or the directory cannot be used.
    """
    local, place = directory / "blobs", directory / _PLACE_FILE
    try:
        if not place.is_file():
            if url is None:
                return LocalBlobStore(local)
            _settle(url, local, place)
        known: dict[str, str] = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{directory} cannot be used: {error.strerror or error}") from error
    if url is not None and url != known["url"]:
        raise ConfigError(
            f"weights.blob_store is {url!r}, but this run keeps its blobs at {known['url']!r}: leave it as it was"
        )
    where = f"{known['url'].rstrip('/')}/{known['directory']}"
    _logger.info("weight blobs are at %s", where)
    return FsspecBlobStore(where, local)


def _settle(url: str, local: Path, place: Path) -> None:
    """Gives a run a directory of its own in the store; two runs must not sweep each other's blobs."""
    if local.is_dir() and any(path.is_file() for path in local.iterdir()):
        raise ConfigError(
            f"weights.blob_store is {url!r}, but this run keeps its blobs in {local}: leave it unset, or begin a new run"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.with_suffix(".tmp")
    scratch.write_text(json.dumps({"url": url, "directory": uuid.uuid4().hex}), encoding="utf-8")
    scratch.replace(place)
