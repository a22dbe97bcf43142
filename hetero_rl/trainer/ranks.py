"""Several trainer processes that act as one: who they are, and how rank 0 tells the others what to do.

    rank 0                                       rank 1, 2, ...
    the training loop, the hub, disk             follow()
    command(step, batch)  ─── broadcast ───────► learner.step        ┐ the same collectives
    command(snapshot)     ─── broadcast ───────► gather, drop        │ in the same order
    command(state)        ─── broadcast ───────► gather, drop        │ on every rank
    command(shards)       ─── broadcast ───────► write own rows      ┘
    command(stop)         ─── broadcast ───────► leave

Only rank 0's main thread commands, so the order of collectives is one. A rank that fails ends its process; torchrun then
ends the others. Rank 0 sends `stop` when its loop ends, whatever ended it. What is broadcast is JSON and raw tensors.
"""

import contextlib
import dataclasses
import datetime as dt
import json
import logging
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hetero_rl.errors import ConfigError

__all__ = ["Ranks", "end_process", "joined_ranks", "rank_of_environment", "world_of_environment"]

_Item = TypeVar("_Item")
_TYPES = (torch.float32, torch.int64, torch.bool, torch.uint8, torch.float64, torch.int32)
LONGEST_SILENCE = dt.timedelta(days=7)
"""How long a rank waits for a command: rank 0 may wait for data as long as a run does."""


def rank_of_environment() -> int:
    """This process's rank as torchrun gives it; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def world_of_environment() -> int:
    """Number of trainer processes as torchrun gives it; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclasses.dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the trainer's processes."""

    rank: int
    world: int
    device: torch.device
    """Where collectives take their tensors from."""

    def share(self, parts: Sequence[_Item]) -> tuple[_Item, ...]:
        """This rank's items: every `world`-th, so that all ranks have as many, or one fewer."""
        return tuple(parts[self.rank :: self.world])

    def command(self, name: str, facts: Mapping[str, Any] | None = None, **tensors: Tensor) -> None:
        """Rank 0: tells every other rank what comes next, with JSON facts and tensors."""
        shapes = {key: [_TYPES.index(tensor.dtype), list(tensor.shape)] for key, tensor in tensors.items()}
        text = json.dumps({"name": name, "facts": dict(facts or {}), "tensors": shapes}).encode()
        dist.broadcast(torch.tensor([len(text)], device=self.device), 0)
        dist.broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.device), 0)
        for tensor in tensors.values():
            if tensor.numel():
                dist.broadcast(_sendable(tensor).to(self.device), 0)

    def next_command(self) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
        """Other ranks: waits for a command; its name, facts and tensors, on the CPU."""
        size = torch.zeros(1, dtype=torch.int64, device=self.device)
        dist.broadcast(size, 0)
        text = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(text, 0)
        message = json.loads(bytes(text.cpu().tolist()))
        tensors = {}
        for key, (kind, shape) in message["tensors"].items():
            empty = torch.empty(shape, dtype=_TYPES[kind])
            received = _sendable(empty).to(self.device)
            if received.numel():
                dist.broadcast(received, 0)
            tensors[key] = received.cpu().to(_TYPES[kind])
        return message["name"], message["facts"], tensors

    def total(self, values: Tensor) -> Tensor:
        """Sum over all ranks, on the CPU, in the type of `values`."""
        summed = _sendable(values).to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.cpu().to(values.dtype)


def _sendable(tensor: Tensor) -> Tensor:
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.contiguous()


@contextlib.contextmanager
def joined_ranks(device: torch.device) -> Generator[Ranks | None]:
    """The trainer's processes, joined; None when there is one only. The group is left at the end.

    Args:
        device: Where the model is: gloo joins processors, NCCL accelerators of NVIDIA.

    Raises:
        ConfigError: torchrun's variables are missing or do not fit together.
    """
    world = world_of_environment()
    if world == 1:
        yield None
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {world}, but {missing[0]} is not set; start the trainer with torchrun"
        )
    if device.type != "cpu" and getattr(device, "index", None) is None:
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(device)
    dist.init_process_group(timeout=LONGEST_SILENCE)  # torch's own choice for the device
    try:
        yield Ranks(dist.get_rank(), world, device)
    finally:
        dist.destroy_process_group()


def end_process(code: int = 0) -> NoReturn:
    """Ends a process whose part is done, with what it wrote flushed, and without finalizing the interpreter.

    Torch's caches keep gloo's threads alive after the group is left. One that still drops the tensor of the last collective
    while the interpreter is finalized asks for a lock that is gone, and the process aborts
    (pytorch/pytorch pull request 179291). The more a machine is loaded, the likelier that is.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
