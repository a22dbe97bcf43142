"""Writes safetensors files as a stream: one tensor in memory at a time, digest on the way, durable at the end.

The library's own writer reports a full disk as an error of its own kind and holds all tensors at once; the format is
an 8-byte little-endian header length, a JSON header and the raw bytes. Reading is left to the library.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from hetero_rl.weights.tensors import raw_bytes, serving_copy

__all__ = ["FileSeal", "seal_of", "write_bytes", "write_tensors"]

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
_NAMES |= {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


@dataclasses.dataclass(frozen=True, slots=True)
class FileSeal:
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileSeal:
    """Writes tensors to a new safetensors file and syncs it to disk; raises OSError."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.element_size() * math.prod(tensor.shape)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("xb") as file:
        writer = _SealingWriter(file)
        writer.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            if tensor.numel():
                writer.write(raw_bytes(serving_copy(tensor, None)))
        return writer.finish()


def write_bytes(path: Path, data: bytes) -> FileSeal:
    """Writes a new file and syncs it to disk; raises OSError."""
    with path.open("xb") as file:
        writer = _SealingWriter(file)
        writer.write(data)
        return writer.finish()


def seal_of(path: Path) -> FileSeal:
    """Size and digest of a file as it is on disk."""
    with path.open("rb") as file:
        return FileSeal(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


class _SealingWriter:
    """Counts and digests what it writes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: "bytes | memoryview") -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += memoryview(data).nbytes

    def finish(self) -> FileSeal:
        self._file.flush()
        os.fsync(self._file.fileno())
        return FileSeal(self._size, self._digest.hexdigest())
