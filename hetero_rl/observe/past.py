"""What the directory of a run says without its hub: how far it came and how it goes on."""

import json
import re
from pathlib import Path

from hetero_rl.config import load_config
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.observe import names

__all__ = ["describe_past_run", "past_run_record", "read_metrics"]

_CHECKPOINT = re.compile(r"step_(\d+)")


def read_metrics(file: Path) -> list[dict[str, float]]:
    """The lines of a metrics file; a last line that was cut off by a crash is left out."""
    records: list[dict[str, float]] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return records
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def past_run_record(run: RunDirectory) -> dict[str, object]:
    """How far a run came, as JSON values."""
    metrics = read_metrics(run.metrics)
    latest: dict[str, float] = {}
    for record in metrics:
        latest.update(record)
    checkpoints = [
        int(found[1]) for path in run.checkpoints.glob("*") if (found := _CHECKPOINT.fullmatch(path.name))
    ]
    return {
        "running": False,
        "step": int(latest.get("step", 0)),
        "total_steps": load_config([run.config]).run.steps if run.config.exists() else None,
        "checkpoint_step": max(checkpoints, default=None),
        "reward": latest.get(names.REWARD),
        "eval_accuracy": latest.get(names.ACCURACY),
    }


def describe_past_run(run: RunDirectory) -> str:
    """The same for people, with what to do next."""
    record = past_run_record(run)
    step, total, checkpoint = record["step"], record["total_steps"], record["checkpoint_step"]
    lines = [f"{run.root}: no hub is running; {step} of {total} steps were made"]
    if (accuracy := record["eval_accuracy"]) is not None:
        lines.append(f"last held-out accuracy {accuracy:.3f}")
    if step == total:
        lines.append(f"look at it with: hetero-rl samples {run.root}")
    else:
        start = f"from step {checkpoint}" if checkpoint else "from the start"
        lines.append(f"continue {start} with: hetero-rl train {run.config} --resume")
    return "\n".join(lines)
