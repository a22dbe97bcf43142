"""What is certified: an engine class, a model for it, weights for the model; and how to ask an engine for something."""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hetero_rl.wire.columns import float32_view, int32_column
from hetero_rl.wire.messages import GenerateWork, Purpose, SamplingParameters, ScoreWork
from hetero_rl.worker.engine import Completion, Engine, EngineSettings

if TYPE_CHECKING:
    import torch

    State: TypeAlias = list[tuple[str, torch.Tensor]]

__all__ = [
    "TOLERANCES",
    "Subject",
    "Tolerance",
    "completion_scores",
    "generate_work",
    "running_tokens",
    "scored",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two log-probabilities of one token may be apart by rounding alone. Natural log units."""

    mean: float
    """Of the absolute differences over all tokens of a check."""
    most: float
    """Of any one token."""


TOLERANCES = {
    "float32": Tolerance(1e-4, 5e-3),
    "float16": Tolerance(2e-2, 0.5),
    "bfloat16": Tolerance(0.1, 2.0),
}
"""By data type of weights and activations: prefill and decoding add up in other orders."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine class under test, a model for it, and weights for the model."""

    engine_class: Callable[[EngineSettings], Engine]
    model_dir: Path
    state: "Callable[[int], State]"
    """Weights by a seed, under the names that the hub sends; the same seed gives the same weights."""
    vocabulary_size: int
    stop_token: int
    prompt: tuple[int, ...]
    tolerance: Tolerance
    settings: EngineSettings
    """What the engine is started with, unless a check needs something else."""

    async def start(self, **changes: object) -> Engine:
        """A started engine without weights; the caller closes it."""
        engine = self.engine_class(dataclasses.replace(self.settings, **changes))  # type: ignore[arg-type]  # names of fields
        await engine.start()
        return engine


def generate_work(
    subject: Subject,
    *,
    samples: int = 4,
    prompt: Sequence[int] | None = None,
    group: str = "g",
    indices: tuple[int, ...] | None = None,
    purpose: Purpose = Purpose.TRAIN,
    **sampling: object,
) -> GenerateWork:
    """Work on the subject's own prompt, up to 12 tokens, under seed 1, unless told otherwise."""
    settings = {"max_new_tokens": 12, "stop_token_ids": (subject.stop_token,), "seed": 1} | sampling
    return GenerateWork(
        group_id=group,
        purpose=purpose,
        prompt_token_ids=int32_column(subject.prompt if prompt is None else prompt),
        sample_indices=tuple(range(samples)) if indices is None else indices,
        sampling=SamplingParameters(**settings),  # type: ignore[arg-type]  # names of fields
    )


async def scored(engine: Engine, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probabilities of all tokens but the first of each sequence, under the loaded version."""
    column = await engine.score(
        ScoreWork(
            score_id="s",
            lengths=tuple(map(len, sequences)),
            token_ids=int32_column(itertools.chain(*sequences)),
            weight_version=engine.loaded_version,
        )
    )
    values = iter(float32_view(column).tolist())
    return [list(itertools.islice(values, len(sequence) - 1)) for sequence in sequences]


async def completion_scores(
    engine: Engine, prompt: Sequence[int], completions: Sequence[Completion]
) -> list[list[float]]:
    """Log-probabilities of the tokens of completions, scored as given tokens."""
    sequences = [[*prompt, *completion.token_ids] for completion in completions]
    return [scores[len(prompt) - 1 :] for scores in await scored(engine, sequences)]


async def running_tokens(engine: Engine, tokens: int, pause: float = 0.0) -> None:
    """Returns once the engine has generated that many tokens since it started.

    Args:
        engine: What generates.
        tokens: How many.
        pause: Seconds between two looks; at 0 nothing comes in between, and an engine thread has to share.
    """
    while engine.generated_tokens < tokens:  # ruff: ignore[async-busy-wait] - the interface has a counter, no event
        await asyncio.sleep(pause)
