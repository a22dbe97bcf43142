"""Prompts and answers from a file of JSON lines, graded by math-verify."""

import hashlib
import json
import math
import random
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from hetero_rl.errors import TaskError
from hetero_rl.tasks.payload import encode_payload
from hetero_rl.tasks.task import Task, TaskItem, derive_seed

__all__ = ["JsonlTask", "read_items"]

MAX_LINE_BYTES = 2**20


class JsonlTask(Task):
    """Lines {"prompt": ..., "answer": ...}.

    Which lines are held out depends on their prompts alone: the prompts are ordered by their SHA-256 and the first
    share is kept. So two lines with one prompt never fall on different sides. Training goes through the other lines
    in a new order each time round, derived from the seed.
    """

    def __init__(self, path: Path, *, held_out_fraction: float, seed: int, held_out: int) -> None:
        """Reads and splits the file.

        Args:
            path: The file.
            held_out_fraction: Share of the different prompts kept for evaluation, at least one of them.
            seed: Seed of the training order.
            held_out: The most held-out items wanted.

        Raises:
            TaskError: If the file cannot be read, a line is malformed, or there are fewer than two prompts.
        """
        super().__init__(seed=seed, held_out=held_out)
        items = read_items(path)
        prompts = sorted({item.question for item in items}, key=_digest)
        if len(prompts) < 2:
            raise TaskError(
                f"{path} (task.path) has {len(prompts)} different prompts; evaluation and training need one each"
            )
        kept = min(max(1, math.ceil(held_out_fraction * len(prompts))), len(prompts) - 1)
        held_out_prompts = dict.fromkeys(prompts[:kept])
        self._training = tuple(item for item in items if item.question not in held_out_prompts)
        first_of = {item.question: item for item in reversed(items)}
        self._held_out = tuple(first_of[prompt] for prompt in held_out_prompts)
        self._order = lru_cache(maxsize=4)(self._make_order)

    @property
    def scorer(self) -> Mapping[str, Any]:
        """The grader process compares with math-verify."""
        return {"kind": "math-verify"}

    def training_item(self, ordinal: int, *, stream: str = "training") -> TaskItem:
        """See `Task.training_item`."""
        epoch, position = divmod(ordinal, len(self._training))
        return self._training[self._order(stream, epoch)[position]]

    def _make_order(self, stream: str, epoch: int) -> tuple[int, ...]:
        order = list(range(len(self._training)))
        random.Random(derive_seed("jsonl", stream, self.seed, epoch)).shuffle(order)  # ruff: ignore[suspicious-non-cryptographic-random-usage] an order, not a secret
        return tuple(order)

    def _make_held_out_items(self) -> tuple[TaskItem, ...]:
        return self._held_out[: self.held_out]

    @cached_property
    def held_out_questions(self) -> frozenset[str]:
        """All prompts kept apart, also those beyond the number that evaluation asks for."""
        return frozenset(item.question for item in self._held_out)


def read_items(path: Path) -> tuple[TaskItem, ...]:
    """Reads the file; raises TaskError with file, line number and what is wrong."""
    try:
        with path.open("rb") as lines:
            return tuple(
                _parse_line(line, f"{path}, line {number}")
                for number, line in enumerate(lines, start=1)
                if line.strip()
            )
    except OSError as error:
        raise TaskError(f"{path} (task.path) cannot be read: {error.strerror or error}") from error


def _parse_line(line: bytes, where: str) -> TaskItem:
    if len(line) > MAX_LINE_BYTES:
        raise TaskError(f"{where}: {len(line)} bytes; at most {MAX_LINE_BYTES} are read")
    try:
        record = json.loads(line)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TaskError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TaskError(f'{where}: expected an object such as {{"prompt": "1+1=", "answer": "2"}}')
    for key in ("prompt", "answer"):
        if key not in record:
            raise TaskError(f"{where}: {key!r} is missing; found {sorted(record)}")
    prompt, answer = record["prompt"], record["answer"]
    if not isinstance(prompt, str) or not prompt:
        raise TaskError(f"{where}: 'prompt' must be text that is not empty, got {prompt!r}")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer):
        raise TaskError(f"{where}: 'answer' must be text that is not empty, or a number, got {answer!r}")
    payload = encode_payload({"answer": str(answer)}, where)
    return TaskItem(question=prompt, payload=payload, solution=str(answer))


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()
