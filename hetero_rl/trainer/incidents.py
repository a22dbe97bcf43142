"""Saves the batch of a step that was stopped because a number was not finite, for inspection."""

import json
from pathlib import Path

from hetero_rl.trainer.batch import TrainingBatch

__all__ = ["save_incident"]

_COLUMNS = (
    "prompt_ids",
    "prompt_lengths",
    "group_of_sequence",
    "lengths",
    "token_ids",
    "behavior_log_probs",
    "action_mask",
    "token_versions",
    "token_lags",
    "lags",
    "rewards",
)


def save_incident(run_dir: Path, batch: TrainingBatch, *, cause: str, weight_version: int) -> Path:
    """Writes a batch below RUN/incidents and returns its directory.

    Args:
        run_dir: The run directory.
        batch: The batch; its columns go to batch.safetensors.
        cause: What was not finite; goes to incident.json with the names and backends of the sequences.
        weight_version: The newest version that was published.
    """
    from safetensors.torch import save_file

    directory = run_dir / "incidents" / f"step_{batch.step:08d}"
    directory.mkdir(parents=True, exist_ok=True)
    columns = {name: getattr(batch, name).contiguous() for name in _COLUMNS}
    save_file(columns, directory / "batch.safetensors")
    facts = {
        "step": batch.step,
        "cause": cause,
        "weight_version": weight_version,
        "group_ids": batch.group_ids,
        "sample_indices": batch.sample_indices,
        "backends": batch.backends,
    }
    (directory / "incident.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return directory
