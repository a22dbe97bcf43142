"""Digests of blobs, tensors and whole states: SHA-256, lower-case hexadecimal. Standard library only."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from hetero_rl.errors import DamagedError
from hetero_rl.wire.messages import BlobReference, TensorEntry

__all__ = ["check_blob_file", "digest_of_bytes", "digest_of_file", "is_digest", "state_digest"]

_READ_BYTES = 1 << 20
_HEX_DIGITS = frozenset("0123456789abcdef")


def digest_of_bytes(data: bytes | bytearray | memoryview) -> str:
    """Digest of bytes in memory, read in place."""
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path: Path) -> str:
    """Digest of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def is_digest(text: str) -> bool:
    """Whether a string is written as digests are here."""
    return len(text) == hashlib.sha256().digest_size * 2 and _HEX_DIGITS.issuperset(text)


def state_digest(tensors: Iterable[TensorEntry]) -> str:
    """Identity of a whole state: digest over the tensors' names and digests in order.

    Each tensor adds its name's length and bytes and its digest, so no two lists of tensors read the same.
    """
    digest = hashlib.sha256()
    for entry in tensors:
        name = entry.name.encode()
        digest.update(len(name).to_bytes(4, "little") + name + entry.digest.encode())
    return digest.hexdigest()


def check_blob_file(path: Path, blob: BlobReference) -> None:
    """Raises DamagedError unless a file holds exactly the bytes of a blob."""
    if not path.is_file():
        raise DamagedError(f"blob {blob.digest} is missing at {path}; fetch it again")
    size = path.stat().st_size
    if size != blob.size:
        raise DamagedError(f"blob {blob.digest} at {path} has {size} bytes of {blob.size}; fetch it again")
    found = digest_of_file(path)
    if found != blob.digest:
        raise DamagedError(f"blob at {path} has digest {found}, not {blob.digest}; fetch it again")
