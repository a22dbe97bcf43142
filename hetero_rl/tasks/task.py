"""Where prompts come from: an endless, deterministic stream of training items and a fixed set of held-out ones."""

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from hetero_rl.errors import TaskError

__all__ = ["Task", "TaskItem", "derive_seed", "first_outside"]

MAX_ATTEMPTS = 64
"""How often an item is drawn again when it is not wanted. With half of all draws unwanted, 64 in a row is 5e-20."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskItem:
    """One question, and what a grader needs to judge an answer to it.

    Example::

        TaskItem(question="How many 1 bits are there in the binary representation of the number 5?",
                 payload=b'{"answer":"2",...}', solution="2")
    """

    question: str
    """The text shown to the model, before any template."""
    payload: bytes
    """JSON for the grader process, which is the only reader."""
    solution: str | None
    """A completion that earns the full reward; None where the task knows none."""


class Task(ABC):
    """Training and held-out items of one task.

    Constraints on every implementation:

    - `training_item(n)` MUST depend on the task's settings, its seed and n only, for every n >= 0.
    - The question of a training item MUST NOT be the question of a held-out item.
    - Held-out items MUST be the same for every seed, so that runs can be compared, and MUST differ from each other.
    """

    def __init__(self, *, seed: int, held_out: int) -> None:
        """Keeps the settings that every task has.

        Args:
            seed: Seed of the order and choice of training items.
            held_out: How many held-out items are wanted.
        """
        self.seed = seed
        self.held_out = held_out

    @property
    @abstractmethod
    def scorer(self) -> Mapping[str, Any]:
        """What a grader process is told once, as JSON: which scorer, with which settings."""

    @abstractmethod
    def training_item(self, ordinal: int, *, stream: str = "training") -> TaskItem:
        """The training item at a position of an endless stream.

        Args:
            ordinal: Position, from 0.
            stream: Name of the stream. The starter model learns from one of its own, "supervised".

        Raises:
            TaskError: If the task has too few different questions to stay clear of the held-out ones.
        """

    @cached_property
    def held_out_items(self) -> tuple[TaskItem, ...]:
        """The held-out items: `held_out` of them, or all there are."""
        return self._make_held_out_items()

    @cached_property
    def held_out_questions(self) -> frozenset[str]:
        """Questions that no training item may ask."""
        return frozenset(item.question for item in self.held_out_items)

    @abstractmethod
    def _make_held_out_items(self) -> tuple[TaskItem, ...]:
        """Builds the held-out items once."""


def derive_seed(*parts: str | int) -> int:
    """A 31-bit seed from names and numbers; different parts give unrelated seeds.

    31 bits, because generators of tasks add an index to it and hand the sum to numpy, which takes 32.
    """
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def first_outside(draw: Callable[[int], TaskItem], unwanted: Collection[str], what: str) -> TaskItem:
    """The first of `draw(0)`, `draw(1)`, ... whose question is not unwanted; raises TaskError naming `what`."""
    for attempt in range(MAX_ATTEMPTS):
        item = draw(attempt)
        if item.question not in unwanted:
            return item
    raise TaskError(
        f"no {what} could be drawn in {MAX_ATTEMPTS} attempts whose question is not held out or taken already "
        f"({len(unwanted)} are): the task has too few different questions. "
        "Lower evaluation.prompts or widen task.options"
    )
