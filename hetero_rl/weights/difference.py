"""A state as what changed since the held weights: how a trainer keeps the policy of a step without copying it.

    policy, on its device ── one tensor at a time ──► compared with the held bytes ──► Difference (only what changed)
    Difference[name] ──► held bytes with the changes put in: one tensor, made when it is asked for

A difference is of use until the held weights move on. Needs numba and torch.
"""

from collections.abc import Iterator, Mapping
from typing import Self

import torch

from hetero_rl.errors import DamagedError
from hetero_rl.weights.changes import TensorChange, compared, served_tensor
from hetero_rl.weights.delta import bits_of
from hetero_rl.weights.held import HeldWeights
from hetero_rl.weights.tensors import NamedTensor, distinct_tensors, tensor_from_bytes

__all__ = ["Difference"]


class Difference(Mapping[str, torch.Tensor]):
    """Tensors by checkpoint name, tied names too; each is a copy of its own.

    Args:
        held: What the changes are against; not copied.
        changes: Of every tensor, in the order of the checkpoint.
    """

    def __init__(self, held: HeldWeights, changes: tuple[TensorChange, ...]) -> None:
        self._held = held
        self._base_version = held.manifest.version
        self._by_name = {
            name: change for change in changes for name in (change.entry.name, *change.entry.tied_names)
        }
        self.changes = changes

    @classmethod
    def of(
        cls, held: HeldWeights, state: Mapping[str, torch.Tensor], serving_dtype: torch.dtype | None
    ) -> Self:
        """Compares a state with the held weights; extra memory is one tensor and what changed.

        Args:
            held: The last version that the hub has stored.
            state: Tensors by checkpoint name, on any device.
            serving_dtype: Type of floating point tensors as served; None keeps each one's own.

        Raises:
            DamagedError: The state has other tensors, shapes, types or ties; names the tensor.
        """
        served = (
            NamedTensor(named.name, served_tensor(named.tensor, serving_dtype), named.tied_names)
            for named in distinct_tensors(state)
        )
        return cls(held, tuple(compared(held, served)))

    def distinct(self) -> Iterator[NamedTensor]:
        """Tensors in the order of the checkpoint, tied ones once."""
        for change in self.changes:
            yield NamedTensor(change.entry.name, self[change.entry.name], change.entry.tied_names)

    def __getitem__(self, name: str) -> torch.Tensor:
        change = self._by_name[name]
        if self._held.manifest.version != self._base_version:
            raise DamagedError(f"the held weights have moved on from version {self._base_version}")
        data = memoryview(bytearray(self._held.raw(change.entry.name)))
        bits_of(change.entry.data_type, data)[change.changes.positions] = change.changes.bits
        return tensor_from_bytes(change.entry, data)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)
