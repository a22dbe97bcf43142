"""Aggregation: what one token's term counts in the loss of the whole batch. Denominators are global and explicit."""

from typing import Literal

import torch
from torch import Tensor

__all__ = ["AggregationKind", "sequence_weights"]

AggregationKind = Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"]


def sequence_weights(token_counts: Tensor, kind: AggregationKind, max_new_tokens: int | None) -> Tensor:
    """Weight [s] of each token of a sequence, float64; the same for all tokens of one sequence.

    - token_mean: 1 over the tokens of the batch (DAPO, VESPO).
    - sequence_mean_token_mean: 1 over (sequences times own tokens) (GRPO, GSPO).
    - sequence_mean_token_sum: 1 over sequences (MiniRL).
    - constant: 1 over (sequences times max_new_tokens) (Dr. GRPO).

    Args:
        token_counts: Counted tokens of each sequence of the whole batch [s]; those with none are not counted.
        kind: Which of the above.
        max_new_tokens: Largest completion of the run in tokens.

    Raises:
        ValueError: kind is "constant" and max_new_tokens is missing.
    """
    counts = token_counts.to(torch.float64)
    sequences = (counts > 0).sum().clamp(min=1).to(torch.float64)
    if kind == "token_mean":
        weight = torch.ones_like(counts) / counts.sum().clamp(min=1)
    elif kind == "sequence_mean_token_mean":
        weight = 1 / (sequences * counts.clamp(min=1))
    elif kind == "sequence_mean_token_sum":
        weight = torch.ones_like(counts) / sequences
    elif max_new_tokens is None:
        raise ValueError('max_new_tokens is None; aggregation "constant" divides by it')
    else:
        weight = torch.ones_like(counts) / (sequences * max_new_tokens)
    return torch.where(counts > 0, weight, 0.0)
