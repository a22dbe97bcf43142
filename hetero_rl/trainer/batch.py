"""Finished groups and their rewards become the frozen columns of one optimizer step. Pure.

What cannot be trained is left out and counted by its cause, never silently:

- stale: the sequence's oldest token is further from the trainer than max_lag steps,
- incomplete: the engine gave up in the middle of the sequence, or the policy chose none of its tokens.

Shapes: G groups, S sequences kept, P prompt tokens of all groups, N completion tokens of all kept sequences.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hetero_rl.errors import InvalidMessageError
from hetero_rl.wire.messages import Disposition, FinishedGroup, FinishReason, TrajectoryBatch

__all__ = ["DroppedSequence", "TrainingBatch", "build_batch", "completions_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class DroppedSequence:
    """A sequence that was not trained, and why."""

    group_id: str
    sample_index: int
    reward: float
    lag: int
    cause: Disposition


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingBatch:
    """One optimizer step's data, column by column, on the CPU.

    Example: one group with the prompt (5, 6), two completions of 2 and 1 tokens::

        prompt_ids [5, 6]  prompt_lengths [2]  group_of_sequence [0, 0]
        token_ids [7, 2, 2]  lengths [2, 1]  behavior_log_probs [-0.5, -0.1, -2.0]
    """

    step: int
    """The optimizer step, from 1, that the batch is for."""
    group_ids: tuple[str, ...]
    """G."""
    prompt_ids: Tensor
    """[P] int64, the prompts of the groups one after another."""
    prompt_lengths: Tensor
    """[G] int64."""
    group_of_sequence: Tensor
    """[S] int64, in [0, G)."""
    sample_indices: tuple[int, ...]
    """S, the index of each sequence in its group."""
    lengths: Tensor
    """[S] int64, completion tokens, each at least 1."""
    token_ids: Tensor
    """[N] int64."""
    behavior_log_probs: Tensor
    """[N] float32, log mu as the workers reported it."""
    action_mask: Tensor
    """[N] bool, True where the policy chose the token."""
    token_versions: Tensor
    """[N] int64, the weight version that sampled each token."""
    token_lags: Tensor
    """[N] int64, optimizer steps between the trainer and each token's weight version."""
    lags: Tensor
    """[S] int64, the largest of its tokens' lags."""
    rewards: Tensor
    """[S] float32."""
    backends: tuple[str, ...]
    """S, where each sequence was made."""
    dropped: tuple[DroppedSequence, ...] = ()

    @property
    def sequences(self) -> int:
        """S."""
        return len(self.sample_indices)

    @property
    def total_lengths(self) -> list[int]:
        """Prompt plus completion tokens of each sequence."""
        totals: list[int] = (self.prompt_lengths[self.group_of_sequence] + self.lengths).tolist()
        return totals

    def row_lengths(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Tokens computed of rows that hold a prompt and completions that share it: all but each completion's last."""
        prompts = self.prompt_lengths[self.group_of_sequence].tolist()
        lengths = self.lengths.tolist()
        return [prompts[row[0]] + sum(lengths[index] - 1 for index in row) for row in rows]

    @property
    def action_lengths(self) -> Tensor:
        """[S] int64, tokens of each sequence that the policy chose, each at least 1."""
        sequence_of_token = torch.repeat_interleave(torch.arange(self.sequences), self.lengths)
        return torch.zeros_like(self.lengths).index_add_(0, sequence_of_token, self.action_mask.long())

    def prompt_of(self, sequence: int) -> Tensor:
        """The prompt ids of a sequence, a view."""
        group = int(self.group_of_sequence[sequence])
        start = int(self.prompt_lengths[:group].sum())
        return self.prompt_ids[start : start + int(self.prompt_lengths[group])]

    def completion_of(self, sequence: int) -> Tensor:
        """The completion ids of a sequence, a view."""
        return self.token_ids[self.tokens_of(sequence)]

    def tokens_of(self, sequence: int) -> slice:
        """Where the tokens of a sequence are in the token columns."""
        start = int(self.lengths[:sequence].sum())
        return slice(start, start + int(self.lengths[sequence]))


@dataclasses.dataclass(frozen=True, slots=True)
class _Sequence:
    """One completion with its columns, before the batch is put together."""

    sample_index: int
    token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    log_probs: np.ndarray[tuple[int], np.dtype[np.float32]]
    action_mask: np.ndarray[tuple[int], np.dtype[np.uint8]]
    versions: np.ndarray[tuple[int], np.dtype[np.int64]]
    lags: np.ndarray[tuple[int], np.dtype[np.int64]]
    backend: str
    aborted: bool


def completions_of(group: FinishedGroup) -> list[list[int]]:
    """Token ids of the completions of a group, by sample index."""
    found: dict[int, list[int]] = {}
    for batch in group.batches:
        ids = np.frombuffer(batch.token_ids, np.int32)
        for index, start, length in zip(batch.sample_indices, _starts(batch), batch.lengths, strict=True):
            found[index] = ids[start : start + length].tolist()
    return [found[index] for index in sorted(found)]


def build_batch(
    step: int,
    groups: Sequence[FinishedGroup],
    rewards: Sequence[Sequence[float]],
    *,
    max_lag: int,
    vocabulary_size: int,
) -> TrainingBatch:
    """Puts the groups of one step together.

    Args:
        step: The optimizer step, from 1; the trainer has applied `step - 1`.
        groups: Finished groups.
        rewards: For each group the reward of each completion, by sample index.
        max_lag: Largest lag that is trained, in optimizer steps.
        vocabulary_size: Ids must be below it.

    Raises:
        InvalidMessageError: A group lacks a completion or a log-probability, or an id is outside the vocabulary.
    """
    kept: list[tuple[int, _Sequence, int, float]] = []
    dropped: list[DroppedSequence] = []
    for position, (group, group_rewards) in enumerate(zip(groups, rewards, strict=True)):
        _check_prompt(group, vocabulary_size)
        sequences = _sequences_of(step, group, vocabulary_size)
        for sequence, reward in zip(sequences, group_rewards, strict=True):
            lag = int(sequence.lags.max())
            cause = _cause_to_drop(sequence, lag, max_lag)
            if cause is None:
                kept.append((position, sequence, lag, reward))
            else:
                dropped.append(
                    DroppedSequence(group.group.group_id, sequence.sample_index, reward, lag, cause)
                )
    return _columns(step, groups, kept, tuple(dropped))


def _columns(
    step: int,
    groups: Sequence[FinishedGroup],
    kept: list[tuple[int, _Sequence, int, float]],
    dropped: tuple[DroppedSequence, ...],
) -> TrainingBatch:
    prompts = [np.frombuffer(group.group.prompt_token_ids, np.int32) for group in groups]
    sequences = [entry[1] for entry in kept]
    return TrainingBatch(
        step=step,
        group_ids=tuple(group.group.group_id for group in groups),
        prompt_ids=_joined(prompts, torch.int64),
        prompt_lengths=torch.tensor([prompt.size for prompt in prompts], dtype=torch.int64),
        group_of_sequence=torch.tensor([entry[0] for entry in kept], dtype=torch.int64),
        sample_indices=tuple(sequence.sample_index for sequence in sequences),
        lengths=torch.tensor([sequence.token_ids.size for sequence in sequences], dtype=torch.int64),
        token_ids=_joined([sequence.token_ids for sequence in sequences], torch.int64),
        behavior_log_probs=_joined([sequence.log_probs for sequence in sequences], torch.float32),
        action_mask=_joined([sequence.action_mask for sequence in sequences], torch.bool),
        token_versions=_joined([sequence.versions for sequence in sequences], torch.int64),
        token_lags=_joined([sequence.lags for sequence in sequences], torch.int64),
        lags=torch.tensor([entry[2] for entry in kept], dtype=torch.int64),
        rewards=torch.tensor([entry[3] for entry in kept], dtype=torch.float32),
        backends=tuple(sequence.backend for sequence in sequences),
        dropped=dropped,
    )


def _joined(columns: "Sequence[np.ndarray[tuple[int], np.dtype[np.generic]]]", dtype: torch.dtype) -> Tensor:
    if not columns:
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(np.concatenate(columns)).to(dtype)


def _sequences_of(step: int, group: FinishedGroup, vocabulary_size: int) -> list[_Sequence]:
    """The completions of a group by sample index; each index must be there once."""
    name = group.group.group_id
    sequences = [
        sequence
        for batch, backend in zip(group.batches, group.backends, strict=True)
        for sequence in _split(step, batch, backend, group.version_steps, vocabulary_size)
    ]
    sequences.sort(key=lambda sequence: sequence.sample_index)
    if [sequence.sample_index for sequence in sequences] != list(range(group.group.group_size)):
        found = [sequence.sample_index for sequence in sequences]
        raise InvalidMessageError(
            f"group {name} should hold the samples 0 to {group.group.group_size - 1} once each, it holds {found}"
        )
    return sequences


def _split(
    step: int, batch: TrajectoryBatch, backend: str, version_steps: Mapping[int, int], vocabulary_size: int
) -> list[_Sequence]:
    if batch.log_probs is None:
        raise InvalidMessageError(f"group {batch.group_id} has no log-probabilities; it cannot be trained on")
    token_ids = np.frombuffer(batch.token_ids, np.int32)
    log_probs = np.frombuffer(batch.log_probs, np.float32)
    mask = np.ones(token_ids.size, np.uint8)
    if batch.action_mask is not None:
        mask = np.frombuffer(batch.action_mask, np.uint8)
    _check_columns(batch, token_ids, {"log_probs": log_probs.size, "action_mask": mask.size}, vocabulary_size)
    versions = _token_versions(batch)
    lags = _token_lags(step, versions, version_steps)
    return [
        _Sequence(
            sample_index=index,
            token_ids=token_ids[start : start + length],
            log_probs=log_probs[start : start + length],
            action_mask=mask[start : start + length],
            versions=versions[start : start + length],
            lags=lags[start : start + length],
            backend=backend,
            aborted=reason is FinishReason.ABORTED,
        )
        for index, start, length, reason in zip(
            batch.sample_indices, _starts(batch), batch.lengths, batch.finish_reasons, strict=True
        )
    ]


def _check_columns(
    batch: TrajectoryBatch,
    token_ids: "np.ndarray[tuple[int], np.dtype[np.int32]]",
    sizes: Mapping[str, int],
    vocabulary_size: int,
) -> None:
    total = sum(batch.lengths)
    for name, size in {"token_ids": token_ids.size, **sizes}.items():
        if size != total:
            raise InvalidMessageError(
                f"group {batch.group_id}: {name} has {size} elements, lengths add up to {total}"
            )
    if total and (token_ids.min() < 0 or token_ids.max() >= vocabulary_size):
        raise InvalidMessageError(
            f"group {batch.group_id} holds token id {token_ids.min()} to {token_ids.max()},"
            f" the model's ids are 0 to {vocabulary_size - 1}; do worker and trainer use the same tokenizer?"
        )


def _check_prompt(group: FinishedGroup, vocabulary_size: int) -> None:
    prompt = np.frombuffer(group.group.prompt_token_ids, np.int32)
    if prompt.size == 0:
        raise InvalidMessageError(
            f"group {group.group.group_id} has an empty prompt; every prompt needs a token"
        )
    if prompt.min() < 0 or prompt.max() >= vocabulary_size:
        raise InvalidMessageError(
            f"group {group.group.group_id}: prompt ids must lie in 0 to {vocabulary_size - 1},"
            f" found {prompt.min()} to {prompt.max()}"
        )


def _token_versions(batch: TrajectoryBatch) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    versions = np.zeros(sum(batch.lengths), np.int64)
    starts = _starts(batch)
    for span in batch.version_spans:
        versions[starts[span.sample] + span.start : starts[span.sample] + span.end] = span.weight_version
    if versions.size and versions.min() == 0:
        raise InvalidMessageError(f"group {batch.group_id}: its version spans do not cover every token")
    return versions


def _starts(batch: TrajectoryBatch) -> list[int]:
    ends = np.cumsum(batch.lengths)
    return [int(end) - length for end, length in zip(ends, batch.lengths, strict=True)]


def _token_lags(
    step: int, versions: "np.ndarray[tuple[int], np.dtype[np.int64]]", version_steps: Mapping[int, int]
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Steps between the trainer, which has applied `step - 1`, and each token's version, before or after."""
    known, where = np.unique(versions, return_inverse=True)
    unknown = {int(version) for version in known} - version_steps.keys()
    if unknown:
        raise InvalidMessageError(f"the hub does not say which step made weight versions {sorted(unknown)}")
    steps = np.array([version_steps[int(version)] for version in known], np.int64)
    return np.abs(step - 1 - steps)[where]


def _cause_to_drop(sequence: _Sequence, lag: int, max_lag: int) -> Disposition | None:
    if sequence.aborted or not sequence.action_mask.any():
        return Disposition.DROPPED_INCOMPLETE
    if lag > max_lag:
        return Disposition.DROPPED_STALE
    return None
