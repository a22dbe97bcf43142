"""What is calibrated: something that loads weights, samples and scores. A backend behind a hub, or an engine in this process."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from hetero_rl.calibration.columns import Floats
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.wire.messages import Capabilities, NumericsRecord

__all__ = ["Sampled", "Subject"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One completion as a backend reported it."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    log_probs: Floats
    """One for each token, as reported when it was sampled."""


class Subject(Protocol):
    """A backend under calibration. Weight versions only grow."""

    name: str
    backend: str

    @property
    def numerics(self) -> NumericsRecord:
        """What its numbers depend on."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def load(self, version: int, snapshot: Snapshot) -> None:
        """Serves these weights from now on, under that version."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Sampled]:
        """Samples `group_size` completions of each prompt, in order; the seed makes them repeatable where the engine can."""

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Floats]:
        """Log-probability of each token but the first of each sequence, of all sequences in one request."""

    def close(self) -> None:
        """Ends it."""
