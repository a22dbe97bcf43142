"""Log-probabilities of completions under the policy, with gradients, without a float32 copy of all logits.

A micro-batch of rows is prompt and completion one after another, padded on the right. Attention is causal, so a real
token never sees the padding, and the model needs neither mask nor position ids: the numbers are those of each sequence
alone. Only the positions that predict completion tokens get logits.

    log p(token) = logits[token] / temperature - logsumexp(logits / temperature)

computed in float32 over a few rows of logits at a time. Backward does the same again from the kept logits:
d log p / d logits = (one_hot(token) - softmax) / temperature.

Shapes: B rows, L padded length, V vocabulary, N completion tokens of the micro-batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.policy import Policy

__all__ = ["completion_log_probs", "model_logits", "selected_log_probs"]

CHUNK_ELEMENTS = 2**24
"""Logits treated at a time: 64 MiB in float32."""


def selected_log_probs(logits: Tensor, rows: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Natural log-probabilities of chosen tokens.

    Args:
        logits: [M, V], any float type.
        rows: [N] int64, in [0, M) without repetition: the row that predicts each token.
        token_ids: [N] int64, in [0, V).
        temperature: Divides the logits, above 0.

    Returns:
        [N] float32, differentiable with respect to `logits`.
    """
    return _SelectedLogProbs.apply(logits, rows, token_ids, temperature)  # type: ignore[no-untyped-call,no-any-return]  # torch leaves apply untyped


def completion_log_probs(
    policy: Policy, batch: TrainingBatch, sequences: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """Log-probabilities of the completion tokens of some sequences of a batch.

    Args:
        policy: The model; gradients flow unless they are switched off.
        batch: The batch.
        sequences: Indices of the sequences, in the order wanted.
        temperature: The sampling temperature.

    Returns:
        [N] float32, the sequences one after another.
    """
    prompts = [batch.prompt_of(index) for index in sequences]
    completions = [batch.completion_of(index) for index in sequences]
    rows = [torch.cat(pair) for pair in zip(prompts, completions, strict=True)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    # Position p predicts token p + 1, so the first logits wanted belong to the last token of the shortest prompt.
    first = min(prompt.numel() for prompt in prompts) - 1
    logits = model_logits(policy, padded[:, :-1], first)
    row_index = torch.cat([torch.full_like(ids, row) for row, ids in enumerate(completions)])
    position = torch.cat(
        [
            torch.arange(ids.numel()) + prompt.numel() - 1 - first
            for prompt, ids in zip(prompts, completions, strict=True)
        ]
    )
    flat = row_index * logits.shape[1] + position
    token_ids = torch.cat(completions)
    return selected_log_probs(
        logits.flatten(0, 1), flat.to(logits.device), token_ids.to(logits.device), temperature
    )


def model_logits(policy: Policy, input_ids: Tensor, first: int) -> Tensor:
    """Logits [B, L - first, V] of the positions from `first` on, of right-padded rows [B, L]."""
    kept = input_ids.shape[1] - first
    with policy.compute():
        output = policy.model(input_ids=input_ids.to(policy.device), use_cache=False, logits_to_keep=kept)
    # A model that does not know `logits_to_keep` gives the logits of every position.
    logits: Tensor = output.logits[:, -kept:]
    return logits


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
            # Each row of logits predicts one token, so rows never repeat and assignment loses nothing.
            result[rows[part]] = probabilities.to(logits.dtype)
        return result, None, None, None


def _chunks(count: int, width: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // max(1, width))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
