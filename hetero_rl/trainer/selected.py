"""Log-probabilities of chosen tokens from logits that exist already, with gradients, without a float32 copy of them all.

    log p(token) = logits[token] / temperature - logsumexp(logits / temperature)

computed in float32 over a few rows of logits at a time. Backward does the same again from the kept logits:
d log p / d logits = (one_hot(token) - softmax) / temperature.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["selected_log_probs"]

CHUNK_ELEMENTS = 2**24
"""Logits treated at a time: 64 MiB in float32."""


def selected_log_probs(logits: Tensor, rows: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Natural log-probabilities of chosen tokens.

    Args:
        logits: [M, V], any float type.
        rows: [N] int64, in [0, M): the row that predicts each token.
        token_ids: [N] int64, in [0, V).
        temperature: Divides the logits, above 0.

    Returns:
        [N] float32, differentiable with respect to `logits`.
    """
    return _SelectedLogProbs.apply(logits, rows, token_ids, temperature)  # type: ignore[no-untyped-call,no-any-return]  # torch leaves apply untyped


class _SelectedLogProbs(torch.autograd.Function):
    """Gathered log-softmax over chosen rows of logits, chunk by chunk both ways."""

    @staticmethod
    def forward(context: Any, logits: Tensor, rows: Tensor, token_ids: Tensor, temperature: float) -> Tensor:
        log_probs = torch.empty(token_ids.numel(), dtype=torch.float32, device=logits.device)
        normalisers = torch.empty_like(log_probs)
        for part in _chunks(token_ids.numel(), logits.shape[-1]):
            scaled = logits[rows[part]].float() / temperature
            normalisers[part] = scaled.logsumexp(-1)
            log_probs[part] = scaled.gather(-1, token_ids[part, None])[:, 0] - normalisers[part]
        context.save_for_backward(logits, rows, token_ids, normalisers)
        context.temperature = temperature
        return log_probs

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        logits, rows, token_ids, normalisers = context.saved_tensors
        result = torch.zeros_like(logits)
        for part in _chunks(token_ids.numel(), logits.shape[-1]):
            scale = (gradient[part] / context.temperature)[:, None]
            probabilities = (
                (logits[rows[part]].float() / context.temperature - normalisers[part, None])
                .exp_()
                .mul_(-scale)
            )
            probabilities.scatter_add_(-1, token_ids[part, None], scale)
            # The last token of a shared prompt predicts the first token of several completions.
            result.index_add_(0, rows[part], probabilities.to(logits.dtype))
        return result, None, None, None


def _chunks(count: int, width: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // max(1, width))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
