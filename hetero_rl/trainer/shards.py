"""Tensors of a checkpoint in files of whole tensors, or in one file for each rank that holds the rank's rows.

    whole     model.safetensors                            optimizer.safetensors
    sharded   model.rank-00001-of-00004.safetensors        optimizer.rank-00001-of-00004.safetensors

Sharded tensors are cut along their first dimension, rank after rank, so the rows of all files in order are the tensor. What is
not sharded, such as the number of steps, is in the first rank's file. Whoever reads asks for rows: any number of ranks reads
what any number wrote, each no more than its part.

    rank 0   command(shards, directory) ─► write own files ─┐ sizes, digests and error numbers
    rank k                                 write own files ─┴─► summed over ranks ─► rank 0 seals them in the manifest
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from hetero_rl.errors import DamagedError
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.ranks import Ranks
from hetero_rl.trainer.sharding import policy_tensors
from hetero_rl.trainer.tensor_files import FileSeal, write_tensors

__all__ = ["KINDS", "StoredTensors", "fill", "own_part", "write_own_shards", "write_shards"]

KINDS = ("model", "optimizer")
_DIGEST = 32
_NAME = re.compile(r"\.rank-(\d{5})-of-(\d{5})\.safetensors")


class StoredTensors:
    """Tensors of one kind in a checkpoint directory, whatever its layout.

    Args:
        directory: Of a verified checkpoint.
        kind: "model", "optimizer" or the stem of another whole file.

    Raises:
        DamagedError: Files of some ranks are missing.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        whole = directory / f"{kind}.safetensors"
        self._paths = [whole] if whole.is_file() else _shard_paths(directory, kind)
        self._stack = contextlib.ExitStack()
        self._places: dict[str, list[Any]] = {}

    def __enter__(self) -> Self:
        from safetensors import safe_open

        for path in self._paths:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # ruff: ignore[in-dict-keys] - a file handle, not a mapping
                self._places.setdefault(name, []).append(file)
        return self

    def __exit__(self, *error: object) -> None:
        self._places.clear()
        self._stack.close()

    @property
    def names(self) -> set[str]:
        """Names of the tensors."""
        return set(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a whole tensor."""
        shapes = [tuple(file.get_slice(name).get_shape()) for file in self._places[name]]
        if len(shapes) == 1:
            return shapes[0]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor, from the files that hold them."""
        parts, offset = [], 0
        for file in self._places[name]:
            piece = file.get_slice(name)
            count = piece.get_shape()[0]
            first, last = max(start - offset, 0), min(stop - offset, count)
            if first < last:
                parts.append(piece[first:last])
            offset += count
        if not parts:
            return torch.empty((0, *self.shape(name)[1:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def whole(self, name: str) -> Tensor:
        """A tensor with all its numbers."""
        shape = self.shape(name)
        if not shape:
            scalar: Tensor = self._places[name][0].get_tensor(name)
            return scalar
        return self.rows(name, 0, shape[0])


def fill(target: Tensor, stored: StoredTensors, name: str) -> None:
    """Copies a stored tensor, or the rows of it that this rank holds, into a tensor of the same whole shape."""
    if not hasattr(target, "to_local"):
        target.copy_(stored.whole(name))
        return
    start, stop = _own_rows(target)
    if start < stop:
        target.to_local().copy_(stored.rows(name, start, stop))


def own_part(tensor: Tensor, ranks: Ranks | None) -> Tensor | None:
    """What this rank writes of a tensor; None for nothing."""
    if hasattr(tensor, "to_local"):
        local: Tensor = tensor.to_local()
        start, stop = _own_rows(tensor)
        if local.shape[0] != stop - start:
            raise ValueError(f"a rank holds {local.shape[0]} rows of a tensor, not rows {start} to {stop}")
        return local if local.numel() else None
    return tensor if ranks is None or ranks.rank == 0 else None


def write_shards(policy: Policy, optimizer: torch.optim.Optimizer, directory: Path) -> dict[str, FileSeal]:
    """Has every rank write its files into a directory that all see; the seals of all files.

    Raises:
        OSError: A rank could not write.
    """
    if policy.sharded is not None:
        policy.sharded.ranks.command("shards", {"directory": str(directory)})
    return write_own_shards(policy, optimizer, directory)


def write_own_shards(
    policy: Policy, optimizer: torch.optim.Optimizer, directory: Path
) -> dict[str, FileSeal]:
    """This rank's part of `write_shards`, which every rank calls together."""
    ranks = None if policy.sharded is None else policy.sharded.ranks
    rank, world = (0, 1) if ranks is None else (ranks.rank, ranks.world)
    table = torch.zeros(world, len(KINDS), 2 + _DIGEST, dtype=torch.int64)
    contents = (_own(_model(policy), ranks), _own(_moments(policy, optimizer), ranks))
    for index, (kind, tensors) in enumerate(zip(KINDS, contents, strict=True)):
        try:
            seal = write_tensors(directory / _file_name(kind, rank, world), tensors)
        except OSError as error:
            # Every rank takes part in the sum below, so the others are told in place of being left to wait.
            table[rank, index, 1] = error.errno or -1
        else:
            table[rank, index, 0] = seal.size
            table[rank, index, 2:] = torch.tensor(list(bytes.fromhex(seal.sha256)))
    return _seals(table if ranks is None else ranks.total(table))


def _seals(table: Tensor) -> dict[str, FileSeal]:
    """Seals by file name from [world, kinds, size, error and digest]; raises the OSError that a rank met."""
    world = table.shape[0]
    seals = {}
    for rank, row in enumerate(table.tolist()):
        for kind, (size, error, *digest) in zip(KINDS, row, strict=True):
            if error:
                raise OSError(error, f"rank {rank} could not write its part of the {kind}")
            seals[_file_name(kind, rank, world)] = FileSeal(size, bytes(digest).hex())
    return seals


def _model(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    for named in policy_tensors(policy):
        yield named.name, named.tensor.detach()


def _moments(policy: Policy, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in policy.named_parameters().items():
        for kind, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}.{kind}", value


def _own(tensors: Iterator[tuple[str, Tensor]], ranks: Ranks | None) -> Mapping[str, Tensor]:
    return {name: part for name, tensor in tensors if (part := own_part(tensor, ranks)) is not None}


def _own_rows(tensor: Any) -> tuple[int, int]:
    """Rows of a sharded tensor that this rank holds: as many as the others, fewer or none at the end."""
    world, rank, count = tensor.device_mesh.size(), tensor.device_mesh.get_local_rank(), tensor.shape[0]
    each = -(-count // world)
    return min(rank * each, count), min((rank + 1) * each, count)


def _file_name(kind: str, rank: int, world: int) -> str:
    return f"{kind}.rank-{rank:05d}-of-{world:05d}.safetensors"


def _shard_paths(directory: Path, kind: str) -> Sequence[Path]:
    found = sorted(path for path in directory.glob(f"{kind}.rank-*") if _NAME.fullmatch(path.name, len(kind)))
    worlds = {path.name.rpartition("-of-")[2] for path in found}
    if len(worlds) != 1 or len(found) != int(worlds.pop().partition(".")[0]):
        raise DamagedError(f"{directory} holds no whole {kind}: {[path.name for path in found]}")
    return found
