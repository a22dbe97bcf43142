"""Keys and values of the running completions: one slot for each, no padding on the left.

    slot 0  k k k k k k . .     lengths 6, 4, 5; the next token of slot r is written at position lengths[r];
    slot 1  k k k k . . . .     a mask hides what lies beyond. Slots 0..n-1 are the running ones, so that a step
    slot 2  k k k k k . . .     reads a view; a completion that ends is replaced by the last one (`move`).
    slot 3  (free)

Nothing is copied when completions of different lengths join or leave, except one slot for each that leaves.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

__all__ = ["SlotCache"]


class SlotCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """A cache that transformers models write into, each row at its own position.

    Memory grows with the completions and tokens that are there at once, by doubling.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._slots = torch.empty(0, 1, dtype=torch.int64)
        self._positions = torch.empty(0, 1, dtype=torch.int64)
        self._view = slice(0, 0)
        self._visible = 0

    def place(
        self, slots: torch.Tensor, states: Sequence[tuple[torch.Tensor, torch.Tensor]], rows: torch.Tensor
    ) -> None:
        """Copies prefilled states into slots, from position 0 on.

        Args:
            slots: int64 [R], ascending.
            states: Keys and values of each layer, [P, heads, tokens, head size].
            rows: int64 [R]: which of the P prefilled sequences goes into each slot.
        """
        tokens = states[0][0].shape[2]
        highest = int(slots[-1]) + 1
        for layer, (keys, values) in enumerate(states):
            self._make_room(layer, keys, values, slots=highest, tokens=tokens)
            self._keys[layer][slots, :, :tokens] = keys[rows]
            self._values[layer][slots, :, :tokens] = values[rows]

    def move(self, target_slots: torch.Tensor, source_slots: torch.Tensor) -> None:
        """Copies whole slots; both are int64 [moved] and share no slot."""
        for layer in range(len(self._keys)):
            self._keys[layer][target_slots] = self._keys[layer][source_slots]
            self._values[layer][target_slots] = self._values[layer][source_slots]

    def begin_pass(self, first_slot: int, positions: torch.Tensor, visible: int) -> None:
        """Says where the tokens of the next forward pass go.

        Args:
            first_slot: Slot of the first of R rows.
            positions: int64 [R, T]: position of each token in its row's slot.
            visible: Number of positions that the attention sees, at least the largest position + 1.
        """
        self._view = slice(first_slot, first_slot + len(positions))
        self._slots = torch.arange(self._view.start, self._view.stop, device=positions.device)[:, None]
        self._positions = positions
        self._visible = visible

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model for each layer: stores the new tokens, returns everything visible."""
        self._make_room(layer_idx, key_states, value_states, slots=self._view.stop, tokens=self._visible)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._slots, :, self._positions] = key_states.transpose(1, 2)
        values[self._slots, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._view, :, : self._visible], values[self._view, :, : self._visible]

    def _make_room(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, *, slots: int, tokens: int
    ) -> None:
        if layer >= len(self._keys):
            # Layers come in order; a model that skips one is caught by the check at start.
            self._keys.append(keys.new_zeros(0, keys.shape[1], 0, keys.shape[3]))
            self._values.append(values.new_zeros(0, values.shape[1], 0, values.shape[3]))
        there = self._keys[layer].shape
        if slots > there[0] or tokens > there[2]:
            self._keys[layer] = _enlarged(self._keys[layer], slots, tokens)
            self._values[layer] = _enlarged(self._values[layer], slots, tokens)


def _enlarged(stored: torch.Tensor, slots: int, tokens: int) -> torch.Tensor:
    """A copy with room for at least that much; zeros where nothing was, so that masked positions stay finite."""
    old_slots, heads, old_tokens, size = stored.shape
    new_slots = old_slots if slots <= old_slots else max(slots, 2 * old_slots, 16)
    new_tokens = old_tokens if tokens <= old_tokens else max(tokens, 2 * old_tokens, 64)
    enlarged = stored.new_zeros(new_slots, heads, new_tokens, size)
    enlarged[:old_slots, :, :old_tokens] = stored
    return enlarged
