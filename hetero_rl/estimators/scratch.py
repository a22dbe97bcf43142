"""Memory for the columns that a method works in."""

import torch
from torch import Tensor

from hetero_rl.estimators.stages.level import new_columns

__all__ = ["Scratch"]

COLUMNS_AT_ONCE = 4
"""Columns that are allocated together, so that they are large enough for huge pages."""


class Scratch:
    """Columns per token that the views of one walk write to in turn: fresh memory costs more than arithmetic.

    Args:
        like: Data type and device.
        size: Tokens of the largest view.
    """

    def __init__(self, like: Tensor, size: int) -> None:
        self._like = like
        self._size = size
        self._free: dict[torch.dtype, list[Tensor]] = {}
        self._taken: list[Tensor] = []

    def take(self, tokens: int, dtype: torch.dtype | None = None) -> Tensor:
        """A column [n = tokens] of any numbers, the caller's until `give_back`."""
        free = self._free.setdefault(dtype or self._like.dtype, [])
        if not free:
            kind = dtype or self._like.dtype
            free += new_columns(COLUMNS_AT_ONCE, self._size, kind, self._like.device).unbind()
        column = free.pop()
        self._taken.append(column)
        return column[:tokens]

    def give_back(self) -> None:
        """Ends the use of all columns taken."""
        while self._taken:
            column = self._taken.pop()
            self._free[column.dtype].append(column)
