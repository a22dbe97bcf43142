"""Prompts and rewards. `open_task` makes the task a configuration names; `Grader` scores completions of it.

Example::

    task = open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    item = task.training_item(0)
    with Grader(task.scorer) as grader:
        [grade] = grader.grade([GradeRequest(payload=item.payload, completion="42")])
"""

import difflib

from hetero_rl.config.tree import TaskConfig
from hetero_rl.errors import TaskError
from hetero_rl.tasks.grading import Grade, Grader, GradeRequest, GradingOutcome, PendingGrades
from hetero_rl.tasks.prompts import PromptEncoder
from hetero_rl.tasks.task import Task, TaskItem

__all__ = [
    "Grade",
    "GradeRequest",
    "Grader",
    "GradingOutcome",
    "PendingGrades",
    "PromptEncoder",
    "Task",
    "TaskItem",
    "open_task",
]

KINDS = ("reasoning-gym", "jsonl")


def open_task(config: TaskConfig, *, seed: int, held_out: int) -> Task:
    """The task that a configuration names.

    Args:
        config: Section `task`.
        seed: Seed of the training stream.
        held_out: How many held-out items are wanted.

    Raises:
        TaskError: If the kind or its data is unknown or cannot be used.
    """
    if config.name == "reasoning-gym":
        from hetero_rl.tasks.reasoning_gym_task import ReasoningGymTask

        return ReasoningGymTask(config.dataset, config.options, seed=seed, held_out=held_out)
    if config.name == "jsonl":
        from hetero_rl.tasks.jsonl_task import JsonlTask

        if config.path is None:
            raise TaskError('task.name is "jsonl", so task.path must name a file')
        return JsonlTask(
            config.path, held_out_fraction=config.held_out_fraction, seed=seed, held_out=held_out
        )
    nearest = difflib.get_close_matches(config.name, KINDS, n=1, cutoff=0)[0]
    raise TaskError(
        f"task.name {config.name!r} is unknown; kinds are {', '.join(KINDS)}; nearest: {nearest!r}"
    )
