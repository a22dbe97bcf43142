"""Any task of reasoning-gym by name, graded by its own scorer."""

import difflib
import functools
from collections.abc import Mapping
from typing import Any

from hetero_rl.errors import TaskError
from hetero_rl.tasks.payload import encode_payload
from hetero_rl.tasks.scorers import REFUSED_DATASETS
from hetero_rl.tasks.task import Task, TaskItem, derive_seed, first_outside

__all__ = ["ReasoningGymTask"]

CHUNK = 500
"""Items drawn from one generator before the next seed: building some generators reads word lists."""


class ReasoningGymTask(Task):
    """Questions of one reasoning-gym generator.

    A generator is a function of (seed, index). Each stream is cut into chunks of 500 indices; the seed of a chunk is
    derived from the stream's name, the run's seed and the chunk's number, so any position is reached directly.
    """

    def __init__(self, dataset: str, options: Mapping[str, Any], *, seed: int, held_out: int) -> None:
        """Checks the name and the options.

        Args:
            dataset: reasoning-gym's name of the task.
            options: Its settings, without `seed` and `size`.
            seed: Seed of the training stream.
            held_out: How many held-out items are wanted.

        Raises:
            TaskError: If the name is unknown, the task has no usable scorer, or an option is not accepted.
        """
        super().__init__(seed=seed, held_out=held_out)
        self.dataset = dataset
        self.options = dict(options)
        _check_name(dataset)
        for owned in ("seed", "size"):
            if owned in self.options:
                raise TaskError(
                    f"task.options.{owned} is set by hetero-rl; use run.seed for the seed, the stream has no end"
                )
        self._generator = functools.lru_cache(maxsize=8)(self._make_generator)
        self._generator(0)

    @property
    def scorer(self) -> Mapping[str, Any]:
        """Name and options, for the grader process to build the same scorer."""
        return {"kind": "reasoning-gym", "dataset": self.dataset, "options": self.options}

    def training_item(self, ordinal: int, *, stream: str = "training") -> TaskItem:
        """See `Task.training_item`."""
        return first_outside(
            functools.partial(self._draw, stream, self.seed, ordinal),
            self.held_out_questions,
            f"training item {ordinal} of {self.dataset!r}",
        )

    def _make_held_out_items(self) -> tuple[TaskItem, ...]:
        items: dict[str, TaskItem] = {}
        for ordinal in range(self.held_out):
            draw = functools.partial(self._draw, "held-out", 0, ordinal)
            item = first_outside(draw, items.keys(), f"held-out item {ordinal} of {self.dataset!r}")
            items[item.question] = item
        return tuple(items.values())

    def _draw(self, stream: str, seed: int, ordinal: int, attempt: int) -> TaskItem:
        chunk, index = divmod(ordinal, CHUNK)
        entry = self._generator(derive_seed(self.dataset, stream, seed, chunk, attempt))[index]
        question, answer = entry["question"], entry["answer"]
        payload = encode_payload(entry, f"an item of reasoning-gym task {self.dataset!r}")
        return TaskItem(question=question, payload=payload, solution=answer)

    def _make_generator(self, seed: int) -> Any:
        import reasoning_gym

        try:
            return reasoning_gym.create_dataset(self.dataset, seed=seed, size=CHUNK, **self.options)
        except (TypeError, ValueError, AssertionError, KeyError) as error:
            raise TaskError(
                f"reasoning-gym task {self.dataset!r} does not accept task.options {self.options}: {error}"
            ) from error


def _check_name(dataset: str) -> None:
    from reasoning_gym.factory import DATASETS

    if dataset in REFUSED_DATASETS:
        raise TaskError(
            f"reasoning-gym task {dataset!r} has no scorer to use here: {REFUSED_DATASETS[dataset]}"
        )
    if dataset not in DATASETS:
        near = difflib.get_close_matches(dataset, DATASETS, n=1, cutoff=0)
        raise TaskError(
            f"reasoning-gym has no task called {dataset!r} (task.dataset); the nearest name is {near[0]!r}, "
            f"and there are {len(DATASETS)}"
        )
