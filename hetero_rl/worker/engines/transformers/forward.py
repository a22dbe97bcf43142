"""The model's forward pass in the three forms that an engine needs: prefill, more tokens for what is there, scoring.

Everything here works for decoder models with full or sliding-window attention; `Forward` refuses others by name.
Shapes: P sequences, T tokens of the longest, R decoding rows, V vocabulary.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from hetero_rl.errors import EngineError
from hetero_rl.worker.engines.transformers.cache import SlotCache

__all__ = ["TOKENS_PER_PASS", "Forward", "chunks_of_tokens"]

TOKENS_PER_PASS = 8192
"""Padded tokens of one prefill or scoring pass; bounds its memory."""

_LOGITS_PER_PASS = 2**25
"""Float32 logits of one scoring pass; bounds its memory with a large vocabulary."""


class Forward:
    """Calls a transformers model; holds no state besides it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._config: Any = model.config.get_text_config()
        # The argument was renamed within transformers 5; both names are in the field.
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._attention_kinds = _attention_kinds(self._config)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocabulary_size: int = self._config.vocab_size
        self.max_positions: int = getattr(self._config, "max_position_embeddings", None) or 2**20

    def prefill(self, sequences: Sequence[Sequence[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer for whole sequences, [P, heads, T, head size], padded on the right."""
        cache = DynamicCache()
        self._call(_padded(sequences, self.device), cache, use_cache=True, logits_to_keep=1)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def extend(
        self, cache: SlotCache, first_slot: int, tokens: torch.Tensor, starts: torch.Tensor, visible: int
    ) -> torch.Tensor:
        """Feeds T tokens more to each of R neighbouring slots; one decoding step when T is 1.

        Args:
            cache: Holds the tokens before; the new ones are added.
            first_slot: Slot of the first row.
            tokens: int64 [R, T]; padding on the right is harmless as long as the next pass writes over it.
            starts: int64 [R]: position of each row's first new token, which is the number of tokens before it.
            visible: Largest position of a new token + 1.

        Returns:
            float32 logits [R, V] of what follows the last of the T tokens.
        """
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=starts.device)
        cache.begin_pass(first_slot, positions, visible)
        output = self._call(
            tokens,
            cache,
            use_cache=True,
            logits_to_keep=1,
            attention_mask=self._mask(positions, visible),
            # Only padding lies beyond the last position there is.
            position_ids=positions.clamp(max=self.max_positions - 1),
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits.float()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Float32 log-probability of each token but the first, for each sequence."""
        scored: list[torch.Tensor] = []
        per_pass = min(TOKENS_PER_PASS, max(1, _LOGITS_PER_PASS // self.vocabulary_size))
        for start, end in chunks_of_tokens([len(sequence) for sequence in sequences], per_pass):
            scored.extend(self._score_pass(sequences[start:end]))
        return scored

    def _score_pass(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        token_ids = _padded(sequences, self.device)
        logits = self._call(token_ids, None, use_cache=False).logits[:, :-1].float()
        log_probs = logits.log_softmax(dim=-1).gather(-1, token_ids[:, 1:, None])[..., 0].cpu()
        return [log_probs[row, : len(sequence) - 1] for row, sequence in enumerate(sequences)]

    def _call(self, token_ids: torch.Tensor, cache: Any, **arguments: Any) -> Any:
        return self._model(input_ids=token_ids, **{self._cache_argument: cache}, **arguments)

    def _mask(self, positions: torch.Tensor, visible: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Which of the visible positions each token sees, [R, 1, T, visible]."""
        columns = torch.arange(visible, device=positions.device)
        masks = {"full_attention": (columns <= positions[..., None])[:, None]}
        if "sliding_attention" in self._attention_kinds:
            inside = columns > positions[..., None] - self._config.sliding_window
            masks["sliding_attention"] = masks["full_attention"] & inside[:, None]
        if len(self._attention_kinds) > 1:
            return masks
        return masks[next(iter(self._attention_kinds))]


def chunks_of_tokens(lengths: Sequence[int], per_pass: int) -> list[tuple[int, int]]:
    """Cuts sequences into runs [start, end) whose padded size is at most `per_pass` tokens, or one sequence."""
    chunks: list[tuple[int, int]] = []
    start, longest = 0, 0
    for end, length in enumerate(lengths):
        longest = max(longest, length)
        if end > start and longest * (end + 1 - start) > per_pass:
            chunks.append((start, end))
            start, longest = end, length
    if start < len(lengths):
        chunks.append((start, len(lengths)))
    return chunks


def _padded(sequences: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Padding comes last, where causal attention keeps it from touching anything before it."""
    longest = max(len(sequence) for sequence in sequences)
    rows = [[*sequence, *([0] * (longest - len(sequence)))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64, device=device)


def _attention_kinds(config: Any) -> frozenset[str]:
    named = getattr(config, "layer_types", None)
    if named is None:
        named = ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"]
    kinds = frozenset(named)
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise EngineError(
            f"model type {config.model_type!r} has layers of type {sorted(unknown)}; this engine decodes "
            "full_attention and sliding_attention only. Use an engine of another backend for it"
        )
    return kinds
