"""Log-probabilities of completions under the policy, with gradients, without a float32 copy of all logits.

Two layouts of a row, padded on the right:

    plain     prompt  completion                          causal attention, no mask, no position ids
    shared    prompt  completion 0  completion 1  ...     each completion sees the prompt and itself only, and its
                                                          positions go on from the prompt's

Attention is causal, so a real token never sees the padding, and the numbers are those of each sequence alone. Sharing
computes G completions of R tokens after a prompt of P in P + G R tokens in place of G (P + R), with exact gradients: the
prompt's is the sum over its completions. Not every architecture can; `can_share_prompts` finds out by trying.

Only positions from the first one that predicts a completion token get logits.

    log p(token) = logits[token] / temperature - logsumexp(logits / temperature)

computed in float32 over a few rows of logits at a time. Backward does the same again from the kept logits:
d log p / d logits = (one_hot(token) - softmax) / temperature.

Shapes: B rows, L padded length, V vocabulary, N completion tokens of the micro-batch.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.policy import Policy

__all__ = ["RowTokens", "completion_log_probs", "model_logits", "row_log_probs", "selected_log_probs"]

CHUNK_ELEMENTS = 2**24
"""Logits treated at a time: 64 MiB in float32."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RowTokens:
    """A prompt and the completions that share it, int64 ids, each at least one."""

    prompt: Tensor
    completions: tuple[Tensor, ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [completion.numel() for completion in self.completions]

    def ids(self) -> Tensor:
        """The row, without padding."""
        return torch.cat([self.prompt, *self.completions])

    def segments(self) -> Tensor:
        """0 for the prompt's tokens, i + 1 for those of completion i."""
        sizes = torch.tensor([self.prompt.numel(), *self.lengths])
        return torch.repeat_interleave(torch.arange(sizes.numel()), sizes)

    def positions(self) -> Tensor:
        """Position ids: every completion goes on from the prompt."""
        start = self.prompt.numel()
        return torch.cat([torch.arange(start), *(torch.arange(start, start + size) for size in self.lengths)])

    def predictors(self) -> Tensor:
        """Index in the row of the token that predicts each completion token."""
        last, start, found = self.prompt.numel() - 1, self.prompt.numel(), []
        for size in self.lengths:
            found.append(torch.tensor([last, *range(start, start + size - 1)]))
            start += size
        return torch.cat(found)


def completion_log_probs(
    policy: Policy, batch: TrainingBatch, rows: Sequence[Sequence[int]], temperature: float = 1.0
) -> Tensor:
    """Log-probabilities of the completion tokens of some sequences of a batch.

    Args:
        policy: The model; gradients flow unless they are switched off.
        batch: The batch.
        rows: Indices of the sequences of each row, which have the same prompt.
        temperature: The sampling temperature.

    Returns:
        [N] float32, the sequences in the order of the rows.
    """
    tokens = [
        RowTokens(batch.prompt_of(row[0]), tuple(batch.completion_of(index) for index in row)) for row in rows
    ]
    return row_log_probs(policy, tokens, temperature)


def row_log_probs(policy: Policy, rows: Sequence[RowTokens], temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the completion tokens of some rows, [N] float32, in their order."""
    first = min(row.prompt.numel() for row in rows) - 1
    padded = torch.nn.utils.rnn.pad_sequence([row.ids() for row in rows], batch_first=True)
    shared = any(len(row.completions) > 1 for row in rows)
    layout = _shared_layout(policy, rows, padded.shape[1] - 1) if shared else {}
    # The last token of a row predicts nothing that was sampled.
    logits = model_logits(policy, padded[:, :-1], first, **layout)
    width = logits.shape[1]
    where = torch.cat([row.predictors() - first + number * width for number, row in enumerate(rows)])
    token_ids = torch.cat([completion for row in rows for completion in row.completions])
    return selected_log_probs(
        logits.flatten(0, 1), where.to(logits.device), token_ids.to(logits.device), temperature
    )


def model_logits(policy: Policy, input_ids: Tensor, first: int, **layout: Tensor) -> Tensor:
    """Logits [B, L - first, V] of the positions from `first` on, of right-padded rows [B, L]."""
    kept = input_ids.shape[1] - first
    with policy.compute():
        output = policy.model(
            input_ids=input_ids.to(policy.device), use_cache=False, logits_to_keep=kept, **layout
        )
    # A model that does not know `logits_to_keep` gives the logits of every position.
    logits: Tensor = output.logits[:, -kept:]
    return logits


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


def _shared_layout(policy: Policy, rows: Sequence[RowTokens], length: int) -> dict[str, Tensor]:
    """Position ids [B, L] and additive attention mask [B, 1, L, L] of rows with several completions."""
    pad = torch.nn.utils.rnn.pad_sequence
    positions = pad([row.positions() for row in rows], batch_first=True)[:, :length]
    segments = pad([row.segments() for row in rows], batch_first=True, padding_value=-1)[:, :length]
    own = segments[:, :, None] == segments[:, None, :]
    visible = (own | (segments[:, None, :] == 0)) & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(visible.shape, dtype=policy.compute_dtype)
    mask.masked_fill_(~visible, torch.finfo(policy.compute_dtype).min)
    return {
        "position_ids": positions.to(policy.device),
        "attention_mask": mask[:, None].to(policy.device),
    }


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
