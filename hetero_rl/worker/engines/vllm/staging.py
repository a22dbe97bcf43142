"""A weight version as a safetensors file that vLLM's processes read, in memory where there is room.

Tensors cannot go through vLLM's own sockets: its multi-process executor sends neither tensors nor arrays, and pickle is
switched off. A path goes through, and every process of a tensor-parallel engine maps the same pages. An engine over several
nodes needs a directory that all of them see.
"""

import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from hetero_rl.errors import EngineError

__all__ = ["Staging"]

_logger = logging.getLogger(__name__)

_MEMORY = Path("/dev/shm")  # ruff: ignore[hardcoded-temp-file] - tmpfs; the directory made in it is private
_PREFIX = "hetero-rl-vllm-"
_ROOM = 64 * 2**20
"""Bytes left free in memory for others."""


class Staging:
    """Writes versions into a private directory and removes them.

    Args:
        memory: A directory in memory; where it has too little room, the directory for temporary files is used.
        shared: A directory that all nodes of the engine see, in place of both.
    """

    def __init__(self, memory: Path = _MEMORY, shared: Path | None = None) -> None:
        self._memory = memory
        self._shared = shared
        # Process ids of another host say nothing here.
        self._prefix = _PREFIX if shared is None else f"{_PREFIX}{socket.gethostname()}-"
        _remove_left_over(shared or memory, self._prefix)

    def write(self, tensors: Mapping[str, torch.Tensor]) -> Path:
        """Writes tensors, names in the order given, and returns the file; raises EngineError when it cannot."""
        from safetensors.torch import save_file

        size = sum(tensor.nbytes for tensor in tensors.values())
        try:
            directory = Path(tempfile.mkdtemp(prefix=f"{self._prefix}{os.getpid()}-", dir=self._place(size)))
            path = directory / "weights.safetensors"
            # vLLM's reload buffers a layer until it is complete, so the order of the names matters.
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()},
                path,
                metadata={"names": json.dumps(list(tensors))},
            )
        except OSError as error:
            raise EngineError(f"weights of {size} bytes cannot be handed to vLLM: {error}") from error
        return path

    @staticmethod
    def remove(path: Path) -> None:
        """Removes what `write` made."""
        shutil.rmtree(path.parent, ignore_errors=True)

    def _place(self, size: int) -> Path | None:
        if self._shared is not None:
            return self._shared
        if self._memory.is_dir() and shutil.disk_usage(self._memory).free >= size + _ROOM:
            return self._memory
        _logger.warning(
            "%s has no room for %d bytes of weights; they go through %s, which is slower (containers: shm_size)",
            self._memory,
            size,
            tempfile.gettempdir(),
        )
        return None


def _remove_left_over(memory: Path, prefix: str) -> None:
    """Removes what a worker that was killed has left; another user's cannot be removed and is left."""
    for directory in memory.glob(f"{prefix}*-*") if memory.is_dir() else ():
        owner = directory.name.removeprefix(prefix).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(directory, ignore_errors=True)
