"""Scores a model directory on a task, without hub or run: the engine of a backend in this process, and graders."""

import asyncio
import dataclasses
import os
from collections.abc import Callable
from itertools import starmap
from pathlib import Path

from hetero_rl.config import Config
from hetero_rl.launch.run_model import load_tokenizer
from hetero_rl.tasks import Grade, Grader, GradeRequest, PromptEncoder, Task, open_task
from hetero_rl.tasks.task import derive_seed
from hetero_rl.trainer.model import stop_tokens
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import GenerateWork, Purpose, SamplingParameters
from hetero_rl.worker.backend import find_backend
from hetero_rl.worker.engine import Engine, EngineSettings

__all__ = ["EvaluatedItem", "Evaluation", "evaluate_model"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedItem:
    """One held-out question, the answer and its grade."""

    question: str
    completion: str
    grade: Grade


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a model scored."""

    items: tuple[EvaluatedItem, ...]
    generated_tokens: int
    generation_seconds: float

    @property
    def accuracy(self) -> float:
        """Share of the items that earned the full reward."""
        return sum(item.grade.correct for item in self.items) / len(self.items)

    @property
    def reward(self) -> float:
        """Mean reward."""
        return sum(item.grade.reward for item in self.items) / len(self.items)


def evaluate_model(
    config: Config, model_dir: Path, *, backend: str, report: Callable[[int, int], None]
) -> Evaluation:
    """Generates an answer for every held-out item and grades it.

    Args:
        config: Sections `task`, `sampling`, `evaluation` and `inference.worker` count.
        model_dir: A Hugging Face directory with weights.
        backend: Name of the backend whose engine generates.
        report: Called with (answers there, answers wanted) whenever one more is there.
    """
    declared = find_backend(backend)
    for name, value in declared.process_environment(config.inference.worker.profile).items():
        os.environ.setdefault(name, value)
    task = open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    tokenizer = load_tokenizer(model_dir)
    encoder = PromptEncoder(tokenizer, config.task, max_new_tokens=config.sampling.max_new_tokens)
    stops = stop_tokens(model_dir, tokenizer.eos_token_id)
    worker = config.inference.worker
    engine = declared.engine_class(worker.engine)(
        EngineSettings(
            model_dir=model_dir,
            dtype=worker.dtype,
            max_concurrent_sequences=worker.max_concurrent_sequences,
            threads=worker.threads,
            device=declared.torch_device,
            options=declared.engine_options(worker.engine, worker.profile, worker.engine_options),
            emulate=worker.emulate or "",
        )
    )
    works = _works(config, task, encoder, stops)
    completions, tokens, seconds = asyncio.run(_generate(engine, works, encoder, report))
    with Grader(
        task.scorer, processes=config.task.grading_processes, time_limit=config.task.grading_timeout
    ) as grader:
        requests = [
            GradeRequest(payload=item.payload, completion=completion)
            for item, completion in zip(task.held_out_items, completions, strict=True)
        ]
        grades = grader.grade(requests)
    return Evaluation(
        items=tuple(
            EvaluatedItem(question=item.question, completion=completion, grade=grade)
            for item, completion, grade in zip(task.held_out_items, completions, grades, strict=True)
        ),
        generated_tokens=tokens,
        generation_seconds=seconds,
    )


def _works(config: Config, task: Task, encoder: PromptEncoder, stops: tuple[int, ...]) -> list[GenerateWork]:
    return [
        GenerateWork(
            group_id=f"eval-{position:06d}",
            purpose=Purpose.EVALUATION,
            prompt_token_ids=int32_column(encoder.encode(item.question)),
            sample_indices=(0,),
            sampling=SamplingParameters(
                max_new_tokens=config.sampling.max_new_tokens,
                stop_token_ids=stops,
                temperature=config.evaluation.temperature,
                seed=derive_seed(config.run.seed, "offline evaluation", position),
            ),
        )
        for position, item in enumerate(task.held_out_items)
    ]


async def _generate(
    engine: Engine, works: list[GenerateWork], encoder: PromptEncoder, report: Callable[[int, int], None]
) -> tuple[list[str], int, float]:
    """Completions in the order of the works, generated tokens, seconds."""
    answers = [""] * len(works)
    there = 0

    async def answer(position: int, work: GenerateWork) -> None:
        nonlocal there
        (completion,) = await engine.generate(work)
        answers[position] = encoder.decode(completion.token_ids)
        there += 1
        report(there, len(works))

    try:
        await engine.start()
        # The engine decodes as many at once as it can hold and keeps the others waiting.
        await asyncio.gather(*starmap(answer, enumerate(works)))
        return answers, engine.generated_tokens, engine.busy_seconds
    finally:
        await engine.close()
