"""The layout of a micro-batch: which tokens the model reads, and which of its hidden states predict which tokens.

Two layouts of a row, padded on the right:

    plain     prompt  completion                          causal attention, no mask, no position ids
    shared    prompt  completion 0  completion 1  ...     each completion sees the prompt and itself only, and its
                                                          positions go on from the prompt's

Attention is causal, so a real token never sees the padding, and the numbers are those of each sequence alone. Sharing
computes G completions of R tokens after a prompt of P in P + G R tokens in place of G (P + R), with exact gradients: the
prompt's is the sum over its completions. Not every architecture can; `can_share_prompts` finds out by trying.

Shapes: B rows, L padded length, N predicted tokens of the micro-batch.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.forward import TokenInputs
from hetero_rl.trainer.head_loss import HeadTargets
from hetero_rl.trainer.policy import Policy

__all__ = ["RowTokens", "completion_log_probs", "micro_batch_rows", "row_inputs", "row_log_probs"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RowTokens:
    """A prompt and the completions that share it, int64 ids, each at least one."""

    prompt: Tensor
    completions: tuple[Tensor, ...]
    predicted: tuple[Tensor, ...] | None = None
    """Of each completion which tokens are predicted, bool; None is all."""

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

    def mask(self) -> Tensor:
        """Which completion tokens are predicted, one completion after another."""
        if self.predicted is None:
            return torch.ones(sum(self.lengths), dtype=torch.bool)
        return torch.cat(self.predicted)


def micro_batch_rows(
    batch: TrainingBatch, rows: Sequence[Sequence[int]], *, actions_only: bool
) -> list[RowTokens]:
    """The tokens of some sequences of a batch.

    Args:
        batch: The batch.
        rows: Indices of the sequences of each row, which have the same prompt.
        actions_only: Whether only tokens that the policy chose are predicted.
    """
    return [
        RowTokens(
            batch.prompt_of(row[0]),
            tuple(batch.completion_of(index) for index in row),
            tuple(batch.action_mask[batch.tokens_of(index)] for index in row) if actions_only else None,
        )
        for row in rows
    ]


def row_inputs(rows: Sequence[RowTokens], mask_dtype: torch.dtype) -> TokenInputs:
    """The padded layout of some rows; targets are the predicted tokens in the order of the rows.

    Args:
        rows: At least one.
        mask_dtype: Type of the additive attention mask, that of the forward pass.
    """
    # The last token of a row predicts nothing that was sampled.
    padded = torch.nn.utils.rnn.pad_sequence([row.ids() for row in rows], batch_first=True)[:, :-1]
    width = padded.shape[1]
    layout = _shared_layout(rows, width, mask_dtype) if any(len(row.completions) > 1 for row in rows) else {}
    keep = torch.cat([row.mask() for row in rows])
    where = torch.cat([row.predictors() + number * width for number, row in enumerate(rows)])
    token_ids = torch.cat([completion for row in rows for completion in row.completions])
    return TokenInputs(padded, layout, HeadTargets(where[keep], token_ids[keep], _kept_lengths(rows)))


def row_log_probs(policy: Policy, rows: Sequence[RowTokens], temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the predicted tokens of some rows, [N] float32, in their order, without gradients."""
    inputs = row_inputs(rows, policy.compute_dtype).to(policy.device)
    return policy.log_probs(inputs, temperature)


def completion_log_probs(
    policy: Policy, batch: TrainingBatch, rows: Sequence[Sequence[int]], temperature: float = 1.0
) -> Tensor:
    """Log-probabilities of the completion tokens of some sequences of a batch, without gradients.

    Args:
        policy: The model.
        batch: The batch.
        rows: Indices of the sequences of each row, which have the same prompt.
        temperature: The sampling temperature.

    Returns:
        [N] float32, the sequences in the order of the rows.
    """
    return row_log_probs(policy, micro_batch_rows(batch, rows, actions_only=False), temperature)


def _kept_lengths(rows: Sequence[RowTokens]) -> tuple[int, ...]:
    lengths: list[int] = []
    for row in rows:
        lengths += row.lengths if row.predicted is None else [int(part.sum()) for part in row.predicted]
    return tuple(lengths)


def _shared_layout(rows: Sequence[RowTokens], length: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Position ids [B, L] and additive attention mask [B, 1, L, L] of rows with several completions."""
    pad = torch.nn.utils.rnn.pad_sequence
    positions = pad([row.positions() for row in rows], batch_first=True)[:, :length]
    segments = pad([row.segments() for row in rows], batch_first=True, padding_value=-1)[:, :length]
    own = segments[:, :, None] == segments[:, None, :]
    visible = (own | (segments[:, None, :] == 0)) & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(visible.shape, dtype=dtype)
    mask.masked_fill_(~visible, torch.finfo(dtype).min)
    return {"position_ids": positions, "attention_mask": mask[:, None]}
