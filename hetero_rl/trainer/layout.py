"""The layout of a micro-batch: which tokens the model reads, and which of its hidden states predict which tokens.

    packed    one row of groups: prompt, completion 0, completion 1, ..., next prompt, ...    (see `packing`)
    padded    one row for each completion: prompt, completion, padding on the right

Packed rows compute every prompt once for all its completions, with exact gradients, and no padding: G completions of R
tokens after a prompt of P cost P + G (R - 1) tokens in place of G (P + R). The last token of a completion is not computed:
it predicts nothing that was sampled. In padded rows attention is causal, so a real token never sees the padding.

Shapes: B rows, L length, N predicted tokens of the micro-batch.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from hetero_rl.trainer.batch import TrainingBatch
from hetero_rl.trainer.forward import TokenInputs
from hetero_rl.trainer.head_loss import HeadTargets
from hetero_rl.trainer.packing import PackedLayout

__all__ = ["RowTokens", "batch_rows", "packed_inputs", "padded_inputs"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RowTokens:
    """A prompt and completions that share it, int64 ids, each at least one."""

    prompt: Tensor
    completions: tuple[Tensor, ...]
    predicted: tuple[Tensor, ...] | None = None
    """Of each completion which tokens are predicted, bool; None is all."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return self.prompt.numel()

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [completion.numel() for completion in self.completions]

    @property
    def predicted_lengths(self) -> list[int]:
        """Predicted tokens of each completion."""
        if self.predicted is None:
            return self.lengths
        return [int(part.sum()) for part in self.predicted]

    def ids(self) -> Tensor:
        """What is computed: the prompt, and the completions without their last tokens."""
        return torch.cat([self.prompt, *(completion[:-1] for completion in self.completions)])

    def positions(self) -> Tensor:
        """Position ids: every completion goes on from the prompt."""
        start = self.prompt_length
        own = (torch.arange(start, start + size - 1) for size in self.lengths)
        return torch.cat([torch.arange(start), *own])

    def predictors(self) -> Tensor:
        """Index in `ids` of the token that predicts each completion token."""
        last, start, found = self.prompt_length - 1, self.prompt_length, []
        for size in self.lengths:
            found.append(torch.tensor([last, *range(start, start + size - 1)]))
            start += size - 1
        return torch.cat(found)

    def mask(self) -> Tensor:
        """Which completion tokens are predicted, one completion after another."""
        if self.predicted is None:
            return torch.ones(sum(self.lengths), dtype=torch.bool)
        return torch.cat(self.predicted)


def batch_rows(batch: TrainingBatch, rows: Sequence[Sequence[int]], *, actions_only: bool) -> list[RowTokens]:
    """The tokens of some sequences of a batch.

    Args:
        batch: The batch.
        rows: Indices of the sequences of each row, which have the same prompt.
        actions_only: Whether only tokens that the policy chose are predicted.
    """
    completions = torch.split(batch.token_ids, batch.lengths.tolist())
    prompts = torch.split(batch.prompt_ids, batch.prompt_lengths.tolist())
    groups = batch.group_of_sequence.tolist()
    masks = None
    if actions_only and not bool(batch.action_mask.all()):
        masks = torch.split(batch.action_mask, batch.lengths.tolist())
    return [
        RowTokens(
            prompts[groups[row[0]]],
            tuple(completions[index] for index in row),
            None if masks is None else tuple(masks[index] for index in row),
        )
        for row in rows
    ]


def packed_inputs(rows: Sequence[RowTokens]) -> TokenInputs:
    """All rows one after another, as one; targets are the predicted tokens in the order of the rows."""
    ids = [row.ids() for row in rows]
    starts = torch.tensor([0, *(part.numel() for part in ids)]).cumsum(0).tolist()
    groups = tuple((row.prompt_length, tuple(size - 1 for size in row.lengths)) for row in rows)
    layout = {
        "position_ids": torch.cat([row.positions() for row in rows])[None],
        "packed_layout": PackedLayout.of(groups),
    }
    where = [row.predictors() + start for row, start in zip(rows, starts[:-1], strict=True)]
    return TokenInputs(torch.cat(ids)[None], layout, _targets(rows, torch.cat(where)))


def padded_inputs(rows: Sequence[RowTokens]) -> TokenInputs:
    """One row for each completion, padded on the right; targets are the predicted tokens in the order of the rows."""
    alone = [
        RowTokens(row.prompt, (completion,), None if row.predicted is None else (row.predicted[index],))
        for row in rows
        for index, completion in enumerate(row.completions)
    ]
    padded = torch.nn.utils.rnn.pad_sequence([row.ids() for row in alone], batch_first=True)
    where = [row.predictors() + number * padded.shape[1] for number, row in enumerate(alone)]
    return TokenInputs(padded, {}, _targets(alone, torch.cat(where)))


def _targets(rows: Sequence[RowTokens], where: Tensor) -> HeadTargets:
    keep = torch.cat([row.mask() for row in rows])
    token_ids = torch.cat([completion for row in rows for completion in row.completions])
    lengths = tuple(length for row in rows for length in row.predicted_lengths)
    return HeadTargets(where[keep], token_ids[keep], lengths)
