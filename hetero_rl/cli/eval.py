"""`hetero-rl eval`: what a model directory, or a run's checkpoint, scores on a task."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.logs import quiet_libraries
from hetero_rl.cli.options import JsonOutput, Overrides
from hetero_rl.config import Config, load_config
from hetero_rl.errors import ConfigError
from hetero_rl.launch.checks import check_model
from hetero_rl.launch.rundir import RunDirectory

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR|RUN", help="A model directory, or a run.")],
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--config", metavar="CONFIG.toml", help="Settings of the task; a run's own if not given."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="A reasoning-gym task by name, with its default options.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="A run's checkpoint of this step; the newest if not given."),
    ] = None,
    prompts: Annotated[int | None, typer.Option("--prompts", min=1, help="Held-out prompts.")] = None,
    infer_backend: Annotated[str, typer.Option("--infer-backend", help="Backend that generates.")] = "cpu",
    show: Annotated[int, typer.Option("--show", min=0, help="Print this many wrong answers.")] = 0,
    overrides: Overrides = None,
    as_json: JsonOutput = False,
) -> None:
    """Score a model directory, or a run's checkpoint, on held-out prompts of a task, in this process."""
    config = _settings(model, files or [], task, prompts, overrides or [])
    directory = _directory(model, step)
    from hetero_rl.launch.evaluation import evaluate_model

    quiet_libraries()

    def report(there: int, wanted: int) -> None:
        if not as_json and (there == wanted or there % max(wanted // 4, 1) == 0):
            typer.echo(f"answered {there}/{wanted}", err=True)

    result = evaluate_model(config, directory, backend=infer_backend, report=report)
    wrong = [item for item in result.items if not item.grade.correct]
    if as_json:
        record = {
            "model": str(directory),
            "task": config.task.name,
            "dataset": config.task.dataset,
            "prompts": len(result.items),
            "accuracy": result.accuracy,
            "reward": result.reward,
            "generated_tokens": result.generated_tokens,
            "generation_seconds": result.generation_seconds,
        }
        typer.echo(json.dumps(record, indent=2))
        return
    for item in wrong[:show]:
        typer.echo(f"wrong: {item.question!r} -> {item.completion!r}")
    typer.echo(
        f"{directory}: accuracy {result.accuracy:.3f}, mean reward {result.reward:.3f} on {len(result.items)} held-out "
        f"prompts of {config.task.dataset if config.task.path is None else config.task.path}"
    )


def _settings(
    model: Path, files: list[Path], task: str | None, prompts: int | None, overrides: list[str]
) -> Config:
    """The run's own settings unless others are given; short options win."""
    run = RunDirectory(model)
    base = files or ([run.config] if run.checkpoints.is_dir() else [])
    short = []
    if task is not None:
        short += ["task.name=reasoning-gym", f"task.dataset={task}", "task.options={}"]
    elif not base and not any(text.startswith("task.") for text in overrides):
        raise ConfigError(
            "name the task with --task NAME or --config CONFIG.toml; a model directory has none of its own"
        )
    if prompts is not None:
        short.append(f"evaluation.prompts={prompts}")
    return load_config(base, [*short, *overrides])


def _directory(model: Path, step: int | None) -> Path:
    from hetero_rl.trainer.export import choose_checkpoint

    run = RunDirectory(model)
    if run.checkpoints.is_dir():
        return choose_checkpoint(run.checkpoints, step)
    if step is not None:
        raise ConfigError(f"--step {step}: {model} is a model directory, not a run")
    check_model(str(model))
    return model
