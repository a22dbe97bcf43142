"""What is said when a run ends: what came of it, where everything lies, what to do next. Pure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.observe import names
from hetero_rl.observe.past import read_metrics
from hetero_rl.observe.progress import duration

__all__ = ["RunResult", "closing_summary", "result_of"]

REWARD_WINDOW = 10
"""Steps whose mean reward stands for the beginning and the end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of a run."""

    complete: bool
    step: int
    total_steps: int
    seconds: float
    """Of this part of the run."""
    accuracies: tuple[tuple[int, float], ...]
    """(step, held-out accuracy), oldest first."""
    rewards: tuple[float, ...]
    """Mean reward of every step."""
    checkpoint: Path | None


def result_of(
    run: RunDirectory, *, complete: bool, step: int, total_steps: int, seconds: float, checkpoint: Path | None
) -> RunResult:
    """Adds what the metrics file of the whole run says, earlier parts included."""
    records = read_metrics(run.metrics)
    return RunResult(
        complete=complete,
        step=step,
        total_steps=total_steps,
        seconds=seconds,
        accuracies=tuple(
            (int(record.get(names.ACCURACY_STEP, record.get("step", 0))), record[names.ACCURACY])
            for record in records
            if record.get(names.ACCURACY) is not None
        ),
        rewards=tuple(record[names.REWARD] for record in records if record.get(names.REWARD) is not None),
        checkpoint=checkpoint,
    )


def closing_summary(run: RunDirectory, result: RunResult, *, tensorboard: bool) -> str:
    """The lines that a person reads last."""
    state = "complete" if result.complete else "stopped"
    lines = [
        f"Run {state}: {result.step} of {result.total_steps} steps, {duration(result.seconds)} of training"
    ]
    lines += _outcome(result)
    lines += ["", *_aligned(_places(run, result, tensorboard=tensorboard)), "", *_aligned(_next(run, result))]
    return "\n".join(lines)


def _outcome(result: RunResult) -> list[str]:
    lines = []
    if result.accuracies:
        (first_step, first), (last_step, last) = result.accuracies[0], result.accuracies[-1]
        if last_step > first_step:
            lines.append(
                f"held-out accuracy {first:.3f} (step {first_step}) -> {last:.3f} (step {last_step}), {last - first:+.3f}"
            )
        else:
            lines.append(f"held-out accuracy {first:.3f} (step {first_step})")
    if result.rewards:
        window = max(1, min(REWARD_WINDOW, len(result.rewards) // 2))
        first, last = _mean(result.rewards[:window]), _mean(result.rewards[-window:])
        lines.append(f"reward {first:.3f} -> {last:.3f} (means of the first and last {window} steps)")
    return lines


def _places(run: RunDirectory, result: RunResult, *, tensorboard: bool) -> list[tuple[str, str]]:
    places = [("metrics", str(run.metrics))]
    if tensorboard:
        places.append(("tensorboard", f"tensorboard --logdir {run.tensorboard}"))
    if result.checkpoint is not None:
        places.append(("checkpoint", str(result.checkpoint)))
    return [*places, ("logs", str(run.logs))]


def _next(run: RunDirectory, result: RunResult) -> list[tuple[str, str]]:
    steps = [("read samples", f"hetero-rl samples {run.root} --worst")]
    if result.checkpoint is not None:
        steps += [
            ("score it again", f"hetero-rl eval {run.root}"),
            ("export it", f"hetero-rl export {run.root} MODEL_DIR"),
        ]
    if result.complete:
        more = f"hetero-rl train {run.config} --resume --set run.steps={2 * result.total_steps}"
        return [*steps, ("train longer", more)]
    return [("go on", f"hetero-rl train {run.config} --resume"), *steps]


def _aligned(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in pairs)
    return [f"{name:<{width}}  {text}" for name, text in pairs]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
