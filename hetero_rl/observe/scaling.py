"""What a run waits for at one moment, and which change would help. A pure function of what the hub answers."""

import enum
from collections.abc import Sequence

from hetero_rl.wire.messages import RunStatus, WorkerState, WorkerSummary

__all__ = ["ADVICE", "ScaleHint", "scale_hint"]


class ScaleHint(enum.StrEnum):
    """What is short."""

    NO_TRAINER = "no_trainer"
    """Nobody trains."""
    NO_WORKER = "no_worker"
    """Nobody generates."""
    DATA = "data"
    """Every worker works and the next batch is not complete."""
    WEIGHTS = "weights"
    """Workers idle although prompts are queued: they may not run further ahead of the trainer."""
    PROMPTS = "prompts"
    """Workers idle and nothing is queued."""
    NOTHING = "nothing"
    """Both sides have what they need, or the run is complete."""


ADVICE = {
    ScaleHint.NO_TRAINER: "no trainer is connected",
    ScaleHint.NO_WORKER: "no worker is active: start one, or readmit one from quarantine",
    ScaleHint.DATA: "the trainer waits for data: more or faster workers would help",
    ScaleHint.WEIGHTS: "workers wait for weights: the trainer is the slower side, further workers would idle",
    ScaleHint.PROMPTS: "workers wait for prompts: raise trainer.prefetch_groups, or fewer workers would do",
    ScaleHint.NOTHING: "neither side waits",
}
"""A sentence for people."""


def scale_hint(status: RunStatus, workers: Sequence[WorkerSummary]) -> ScaleHint:
    """What is short right now; one moment says little, the share of moments over a minute says more.

    Args:
        status: The run.
        workers: Its workers, gone ones too or not.
    """
    if status.run is None or not status.trainer_connected:
        return ScaleHint.NO_TRAINER
    if status.step >= status.total_steps > 0:
        return ScaleHint.NOTHING
    active = [worker for worker in workers if worker.state is WorkerState.ACTIVE]
    if not active:
        return ScaleHint.NO_WORKER
    if any(worker.leases == 0 for worker in active):
        return ScaleHint.WEIGHTS if status.training.queued else ScaleHint.PROMPTS
    if status.training.finished < status.groups_per_step:
        return ScaleHint.DATA
    return ScaleHint.NOTHING
