"""Work of a worker: prompt groups, what to generate or score, leases."""

import dataclasses
import enum

from hetero_rl.wire.columns import Int32Bytes

__all__ = [
    "GenerateWork",
    "Lease",
    "PromptGroup",
    "Purpose",
    "SamplingParameters",
    "ScoreWork",
]


class Purpose(enum.IntEnum):
    """What the completions of a group are for."""

    TRAIN = 1
    EVALUATION = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How a completion is sampled. The portable contract is temperature 1, top_p 1, top_k 0."""

    max_new_tokens: int
    """Most tokens of one completion, the stop token included."""
    stop_token_ids: tuple[int, ...]
    """A completion ends with the first of these; it is part of the completion."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy, for evaluation only."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of tokens kept; 0 keeps everything."""
    seed: int | None = None
    """Seed of the group; None lets the engine choose."""

    @property
    def portable(self) -> bool:
        """Whether every vendor's engine reports the log-probabilities of exactly this distribution."""
        return self.temperature == 1.0 and self.top_p == 1.0 and self.top_k == 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """A prompt and how many completions of it are wanted."""

    group_id: str
    ordinal: int
    """Position in the task's data, counted from 0 for each purpose."""
    prompt_token_ids: Int32Bytes
    group_size: int
    sampling: SamplingParameters
    purpose: Purpose = Purpose.TRAIN
    payload: bytes = b""
    """The trainer's own data about the prompt; workers never see it."""
    min_weight_version: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerateWork:
    """Completions to generate."""

    group_id: str
    purpose: Purpose
    prompt_token_ids: Int32Bytes
    sample_indices: tuple[int, ...]
    sampling: SamplingParameters


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """Given tokens whose log-probabilities are wanted."""

    score_id: str
    lengths: tuple[int, ...]
    token_ids: Int32Bytes
    weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A promise to one worker that nobody else does this work until the lease ends."""

    lease_id: str
    attempt: int
    """How often this work was leased before."""
    time_to_live: float
    """Seconds."""
    min_weight_version: int
    work: GenerateWork | ScoreWork
