"""Says which settings take less memory when a step does not fit."""

import contextlib
from collections.abc import Generator

import torch

from hetero_rl.errors import MemoryLimitError

__all__ = ["naming_the_knobs"]

_CPU_ALLOCATOR = "DefaultCPUAllocator"
"""What torch's message has when the host gives no memory; it is a plain RuntimeError there."""


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or _CPU_ALLOCATOR in str(error)


@contextlib.contextmanager
def naming_the_knobs(step: int, tokens_per_micro_batch: int) -> Generator[None]:
    """Turns a lack of memory in forward or backward into an error that names what to change.

    Raises:
        MemoryLimitError: In place of torch's error. Nothing was applied.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        raise MemoryLimitError(
            f"step {step} does not fit into the device's memory: lower trainer.tokens_per_micro_batch (it is"
            f" {tokens_per_micro_batch}); then set trainer.activation_checkpointing, trainer.compute_dtype ="
            " 'bfloat16', trainer.offload_optimizer or trainer.lora.rank, or use more ranks; nothing was applied"
            f" ({str(error).splitlines()[0]})"
        ) from error
    except MemoryError as error:
        raise MemoryLimitError(
            f"step {step} does not fit into the host's memory: lower trainer.tokens_per_micro_batch (it is"
            f" {tokens_per_micro_batch}); nothing was applied"
        ) from error
