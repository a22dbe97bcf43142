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

import torch

import hetero_rl
from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, HeteroRLError, ProtocolError, StorageError
from hetero_rl.estimators import make_estimator
from hetero_rl.tasks import Grader, open_task
from hetero_rl.trainer.archive import VersionArchive
from hetero_rl.trainer.checkpoint import Checkpoint, CheckpointStore, Manifest, latest_checkpoint
from hetero_rl.trainer.evaluation import EvaluationResult, Evaluator
from hetero_rl.trainer.keeper import CheckpointKeeper
from hetero_rl.trainer.loop import TrainingLoop
from hetero_rl.trainer.model import ModelSource, open_model
from hetero_rl.trainer.patience import InterruptedRunError, Patience, StopSignal
from hetero_rl.trainer.prefetch import BatchSource
from hetero_rl.trainer.prompts import PromptFeeder, PromptMaker, groups_ahead
from hetero_rl.trainer.publish import Publisher, probe_sequences
from hetero_rl.trainer.sinks import Sink
from hetero_rl.trainer.state import (
    ConsumedGroups,
    capture_random_states,
    config_digest,
    library_versions,
    restore_random_states,
    restore_tensors,
)
from hetero_rl.trainer.step import Learner
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.weights.model_files import collect_model_files, model_digests
from hetero_rl.wire.messages import Limits, RunGrant, RunRequest
from hetero_rl.wire.ports import TrainingPort

__all__ = ["TrainingSummary", "check_settings", "train"]

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
    check_settings(config)
    signal = StopSignal(stop)
    with contextlib.ExitStack() as stack:
        loop = _open(config, port, sinks, signal, stack, resume=resume, model_dir=model_dir)
        complete = _run(loop)
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


def check_settings(config: Config) -> None:
    """Raises ConfigError for settings that contradict each other."""
    if config.weights.publish_every > config.staleness.max_lag + 1:
        raise ConfigError(
            f"weights.publish_every is {config.weights.publish_every}, but with staleness.max_lag"
            f" {config.staleness.max_lag} workers need a version at least every {config.staleness.max_lag + 1} steps"
        )
    if config.sampling.top_p != 1 or config.sampling.top_k != 0:
        raise ConfigError(
            f"sampling.top_p is {config.sampling.top_p} and top_k is {config.sampling.top_k}: the trainer does not"
            " reproduce a truncated distribution, so the importance ratio would be wrong; set them to 1 and 0"
        )
    make_estimator(config.estimator.name, config.estimator.options).check_run(
        group_size=config.trainer.group_size,
        old_log_probs=config.estimator.recompute_old_log_probs == "always",
    )


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


def _open(
    config: Config,
    port: TrainingPort,
    sinks: Sequence[Sink],
    stop: StopSignal,
    stack: contextlib.ExitStack,
    *,
    resume: bool,
    model_dir: Path | None,
) -> TrainingLoop:
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    task = open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    model = open_model(config, task, model_dir)
    maker = PromptMaker(task, model.encoder, config, model.stop_token_ids)
    learner = Learner(
        model.policy,
        make_estimator(config.estimator.name, config.estimator.options),
        config.optimizer,
        tokens_per_micro_batch=config.trainer.tokens_per_micro_batch,
        temperature=config.sampling.temperature,
    )
    checkpoint = _continue_from(config, learner, resume=resume)
    step = checkpoint.manifest.step if checkpoint else 0
    grader = stack.enter_context(
        Grader(
            task.scorer,
            processes=config.task.grading_processes,
            time_limit=config.task.grading_timeout,
        )
    )
    stack.enter_context(_started(sinks, resume_step=step or -1))
    patience = Patience(stop)
    grant = _open_run(config, port, model, maker, patience, step)
    clock = WaitClock()
    publisher = Publisher(
        model.policy,
        port,
        config.weights,
        probes=probe_sequences(maker.held_out_prompts(), config.weights),
        latest_version=grant.latest_weight_version,
        directory=config.run.dir / "outgoing",
        patience=patience,
        clock=clock,
    )
    archive = VersionArchive(
        model.policy,
        config.estimator.recompute_old_log_probs,
        max_lag=config.staleness.max_lag,
        tokens_per_micro_batch=config.trainer.tokens_per_micro_batch,
        temperature=config.sampling.temperature,
    )
    _publish_first(publisher, archive, grant, checkpoint)
    feeder = PromptFeeder(
        maker,
        port,
        patience,
        next_ordinal=grant.next_train_ordinal,
        credits=grant.credits,
        groups_per_step=config.trainer.groups_per_step,
        total_steps=config.run.steps,
        ahead=groups_ahead(config),
    )
    consumed = ConsumedGroups(checkpoint.manifest.consumed if checkpoint else None)
    return TrainingLoop(
        config=config,
        port=port,
        learner=learner,
        batches=BatchSource(
            port,
            feeder,
            grader,
            model.encoder,
            consumed=consumed,
            max_lag=config.staleness.max_lag,
            vocabulary_size=model.policy.vocabulary_size,
            patience=patience,
            stop=stop,
            clock=clock,
        ),
        publisher=publisher,
        evaluator=Evaluator(maker, port, grader, model.encoder, patience, stop),
        archive=archive,
        checkpoints=_keeper(config, learner, model, port, patience, checkpoint, publisher, feeder, consumed),
        consumed=consumed,
        sinks=sinks,
        clock=clock,
        patience=patience,
        stop=stop,
        step=step,
    )


def _continue_from(config: Config, learner: Learner, *, resume: bool) -> Checkpoint | None:
    """Loads the newest whole checkpoint into the learner; None when the run begins at step 0."""
    directory = config.run.dir / "checkpoints"
    checkpoint = latest_checkpoint(directory, set_damaged_aside=resume)
    if checkpoint is None:
        return None
    if not resume:
        raise ConfigError(
            f"run.dir {str(config.run.dir)!r} holds a run of {checkpoint.manifest.step} steps; resume it, or choose"
            " another run.dir"
        )
    restore_tensors(checkpoint.path, learner.policy, learner.optimizer)
    restore_random_states(checkpoint.manifest.random_states)
    if checkpoint.manifest.config_digest != config_digest(config):
        _LOG.warning("settings differ from those of the checkpoint in %s", checkpoint.path)
    return checkpoint


def _open_run(
    config: Config,
    port: TrainingPort,
    model: ModelSource,
    maker: PromptMaker,
    patience: Patience,
    step: int,
) -> RunGrant:
    files = collect_model_files(model.directory)
    request = RunRequest(
        run_id=config.run.name,
        groups_per_step=config.trainer.groups_per_step,
        max_lag=config.staleness.max_lag,
        total_steps=config.run.steps,
        model_digests=model_digests(model.directory),
        model_files=tuple(file for file, _ in files),
        sampling=maker.sampling,
        limits=Limits(
            max_message_bytes=config.hub.max_message_bytes,
            max_prompt_tokens=config.task.max_prompt_tokens,
            max_completion_tokens=config.sampling.max_new_tokens,
            max_group_size=config.trainer.group_size,
            vocabulary_size=model.policy.vocabulary_size,
        ),
        config_json=config.model_dump_json(),
        software_version=hetero_rl.__version__,
        resume_step=step,
    )
    grant = patience(lambda: port.open_run(request), "opening the run")
    for file, path in files:
        patience(
            lambda file=file, path=path: port.put_blob(file.blob, iter([path.read_bytes()])),  # type: ignore[misc]  # defaults bind the loop variables
            f"uploading {file.name}",
        )
    return grant


def _publish_first(
    publisher: Publisher, archive: VersionArchive, grant: RunGrant, checkpoint: Checkpoint | None
) -> None:
    """Publishes the weights that training starts from, unless they are exactly the hub's latest version already."""
    step = checkpoint.manifest.step if checkpoint else 0
    expected = checkpoint.manifest.weight_version if checkpoint else 1
    snapshot = publisher.snapshot(step)
    if (
        grant.latest_weight_version == expected
        and publisher.state_digest(snapshot) == grant.latest_state_digest
    ):
        archive.keep(expected, snapshot)
        return
    archive.keep(publisher.publish(snapshot), snapshot)


def _keeper(
    config: Config,
    learner: Learner,
    model: ModelSource,
    port: TrainingPort,
    patience: Patience,
    checkpoint: Checkpoint | None,
    publisher: Publisher,
    feeder: PromptFeeder,
    consumed: ConsumedGroups,
) -> CheckpointKeeper:
    def describe(step: int) -> Manifest:
        return Manifest(
            run_id=config.run.name,
            step=step,
            weight_version=publisher.version,
            next_ordinal=feeder.next_ordinal,
            consumed=consumed.ranges,
            random_states=capture_random_states(),
            config_digest=config_digest(config),
            versions=library_versions(),
        )

    return CheckpointKeeper(
        CheckpointStore(
            config.run.dir / "checkpoints",
            keep=config.checkpoint.keep,
            max_failures=config.checkpoint.max_failures,
        ),
        learner,
        describe,
        model_files=[path for _, path in collect_model_files(model.directory)],
        port=port,
        patience=patience,
        newest=checkpoint.path if checkpoint else None,
        newest_step=checkpoint.manifest.step if checkpoint else 0,
    )


@contextlib.contextmanager
def _started(sinks: Sequence[Sink], *, resume_step: int) -> Generator[None]:
    """Sinks that are closed in any case."""
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(sink.close)
            sink.start(resume_step=resume_step)
        yield
