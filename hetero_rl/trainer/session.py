"""From settings to a finished run: puts the parts together, runs the loop, and ends it in order.

open:   model, task, graders ─► checkpoint (when resuming) ─► open the run at the hub ─► model files ─► version
run:    the loop in `hetero_rl.trainer.loop`
close:  threads end ─► checkpoint after an interruption ─► close the run at the hub ─► graders, sinks
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, HeteroRLError, ProtocolError, StorageError
from hetero_rl.tasks import Grader
from hetero_rl.trainer.assembly import assemble, open_run
from hetero_rl.trainer.evaluation import EvaluationResult
from hetero_rl.trainer.followers import LeadingLearner, follow
from hetero_rl.trainer.local import LocalState, check_settings, open_local_state
from hetero_rl.trainer.loop import TrainingLoop
from hetero_rl.trainer.patience import InterruptedRunError, Patience, StopSignal
from hetero_rl.trainer.policy import choose_device
from hetero_rl.trainer.ranks import joined_ranks
from hetero_rl.trainer.sinks import Sink
from hetero_rl.wire.ports import TrainingPort

__all__ = ["TrainingSummary", "check_settings", "follow_rank", "train"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """How a run, or this part of it, ended."""

    complete: bool
    """Whether every step was made; False after an interruption, and the run can be continued."""
    step: int
    """Optimizer steps in the weights."""
    total_steps: int
    seconds: float
    completion_tokens: int
    """Completion tokens trained on in this part of the run."""
    evaluations: tuple[EvaluationResult, ...]
    """Held-out accuracy, oldest first."""
    checkpoint: Path | None
    """The newest checkpoint."""
    weight_version: int
    """The newest version that the hub has."""


def train(
    config: Config,
    port: TrainingPort,
    sinks: Sequence[Sink],
    *,
    resume: bool,
    stop: threading.Event,
    model_dir: Path | None = None,
) -> TrainingSummary:
    """Trains until all steps are made or `stop` is set.

    Args:
        config: The resolved settings.
        port: The hub.
        sinks: Where metrics go; they are started and closed here.
        resume: Whether the run of `run.dir` is continued. Without any checkpoint it begins again, with what the hub holds.
        stop: Ends the run at the next step, with a checkpoint.
        model_dir: Directory of the model; None reads `model.path`.

    Raises:
        ConfigError: A setting or the model directory cannot be used.
        NonFiniteError: A loss or gradient is not finite; nothing was applied, and the batch is saved.
        ProtocolError: The hub refused something, or stayed away.
        StorageError: Checkpoints cannot be written.
    """
    started = time.monotonic()
    signal = StopSignal(stop)
    patience = Patience(signal)
    with joined_ranks(choose_device(config.trainer.device)) as ranks:
        local = open_local_state(config, resume=resume, model_dir=model_dir, ranks=ranks)
        try:
            loop, complete = _train(config, local, port, sinks, patience, signal)
        finally:
            if isinstance(local.learner, LeadingLearner):
                local.learner.stop()
    return TrainingSummary(
        complete=complete,
        step=loop.step,
        total_steps=config.run.steps,
        seconds=time.monotonic() - started,
        completion_tokens=loop.completion_tokens,
        evaluations=tuple(loop.evaluations),
        checkpoint=loop.checkpoints.newest,
        weight_version=loop.publisher.stored,
    )


def follow_rank(config: Config, *, resume: bool) -> None:
    """What a trainer process after the first does, from the same settings: its part of every step, until rank 0 ends.

    The run directory and the model directory must be the same files on every rank's machine.
    """
    with joined_ranks(choose_device(config.trainer.device)) as ranks:
        if ranks is None:
            raise ConfigError("there is one trainer process only, so there is nobody to follow")
        local = open_local_state(config, resume=resume, model_dir=None, ranks=ranks)
        follow(local.learner, ranks)


def _train(
    config: Config,
    local: LocalState,
    port: TrainingPort,
    sinks: Sequence[Sink],
    patience: Patience,
    signal: StopSignal,
) -> tuple[TrainingLoop, bool]:
    """Runs the loop of an opened run; the loop, and whether it made all steps."""
    grader = Grader(
        local.task.scorer,
        processes=config.task.grading_processes,
        time_limit=config.task.grading_timeout,
    )
    with grader, _started(sinks, resume_step=local.step or -1):
        grant, model_files = open_run(local, port, patience)
        with model_files.kept():
            loop = assemble(local, grant, port, grader, sinks, patience=patience, stop=signal)
            return loop, _run(loop)


def _run(loop: TrainingLoop) -> bool:
    """Runs the loop and closes the run; True when it made all steps."""
    complete = False
    try:
        loop.run()
        complete = True
    except InterruptedRunError:
        _LOG.info("stopping after step %d", loop.step)
    except StorageError:
        _end(loop, complete=False, save=False)
        raise
    except HeteroRLError:
        # Raised between steps or before the optimizer touched anything, so the weights are those of `loop.step`.
        _end(loop, complete=False, save=True)
        raise
    except BaseException:
        _end(loop, complete=False, save=False)
        raise
    _end(loop, complete=complete, save=not complete)
    return complete


def _end(loop: TrainingLoop, *, complete: bool, save: bool) -> None:
    loop.close()
    if save:
        try:
            loop.drain()
        except (ProtocolError, InterruptedRunError) as error:
            _LOG.warning("the hub was not told of the last checkpoint: %s", error)
    try:
        loop.port.close_run(complete=complete)
    except ProtocolError as error:
        if complete:
            raise
        _LOG.warning("the hub was not told that the run ends: %s", error)


@contextlib.contextmanager
def _started(sinks: Sequence[Sink], *, resume_step: int) -> Generator[None]:
    """Sinks that are closed in any case."""
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(sink.close)
            sink.start(resume_step=resume_step)
        yield
