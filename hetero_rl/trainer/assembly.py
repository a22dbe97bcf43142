"""Opens the run at the hub and puts the parts of the training loop together."""

from collections.abc import Sequence

import hetero_rl
from hetero_rl.errors import ConfigError
from hetero_rl.tasks import Grader
from hetero_rl.trainer.archive import VersionArchive
from hetero_rl.trainer.checkpoint import CheckpointStore, Manifest
from hetero_rl.trainer.evaluation import Evaluator
from hetero_rl.trainer.keeper import CheckpointKeeper
from hetero_rl.trainer.local import LocalState
from hetero_rl.trainer.loop import TrainingLoop
from hetero_rl.trainer.model_upload import ModelUpload
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.prefetch import BatchSource
from hetero_rl.trainer.prompts import PromptFeeder, groups_ahead
from hetero_rl.trainer.publish import Publisher, probe_sequences
from hetero_rl.trainer.sinks import Sink
from hetero_rl.trainer.state import (
    ConsumedGroups,
    capture_random_states,
    config_digest,
    library_versions,
)
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.weights.model_files import collect_model_files, model_digests
from hetero_rl.wire.messages import Limits, RunGrant, RunRequest
from hetero_rl.wire.ports import TrainingPort

__all__ = ["assemble", "open_run"]


def open_run(local: LocalState, port: TrainingPort, patience: Patience) -> tuple[RunGrant, ModelUpload]:
    """Opens or continues the run at the hub and uploads the files that workers need besides weights."""
    config, model = local.config, local.model
    files = collect_model_files(model.directory)
    request = RunRequest(
        run_id=config.run.name,
        groups_per_step=config.trainer.groups_per_step,
        max_lag=config.staleness.max_lag,
        total_steps=config.run.steps,
        model_digests=model_digests(model.directory),
        model_files=tuple(file for file, _ in files),
        sampling=local.maker.sampling,
        limits=Limits(
            max_message_bytes=config.hub.max_message_bytes,
            max_prompt_tokens=config.task.max_prompt_tokens,
            max_completion_tokens=config.sampling.max_new_tokens,
            max_group_size=config.trainer.group_size,
            vocabulary_size=model.policy.vocabulary_size,
        ),
        config_json=config.model_dump_json(),
        software_version=hetero_rl.__version__,
        resume_step=local.step,
        adapter_weights=config.trainer.lora.publish == "adapter",
    )
    grant = patience(lambda: port.open_run(request), "opening the run")
    if request.adapter_weights and not grant.adapter_weights:
        raise ConfigError(
            'trainer.lora.publish is "adapter", but the hub is older than such versions: update hetero-rl there, or publish '
            '"merged"'
        )
    upload = ModelUpload(port, files)
    upload.upload(patience)
    return grant, upload


def assemble(
    local: LocalState,
    grant: RunGrant,
    port: TrainingPort,
    grader: Grader,
    sinks: Sequence[Sink],
    *,
    patience: Patience,
    stop: StopSignal,
) -> TrainingLoop:
    """Puts the loop together and publishes the weights that it starts from."""
    clock = WaitClock()
    config = local.config
    publisher = _publisher(local, grant, port, patience, clock)
    archive = VersionArchive(
        local.model.policy,
        config.estimator.recompute_old_log_probs,
        max_lag=config.staleness.max_lag,
        tokens_per_micro_batch=config.trainer.tokens_per_micro_batch,
        temperature=config.sampling.temperature,
    )
    _publish_first(local, grant, publisher, archive)
    feeder = PromptFeeder(
        local.maker,
        port,
        patience,
        next_ordinal=grant.next_train_ordinal,
        credits=grant.credits,
        groups_per_step=config.trainer.groups_per_step,
        total_steps=config.run.steps,
        ahead=groups_ahead(config),
    )
    consumed = ConsumedGroups(local.checkpoint.manifest.consumed if local.checkpoint else None)
    batches = BatchSource(
        port,
        feeder,
        grader,
        local.model.encoder,
        groups_per_step=config.trainer.groups_per_step,
        consumed=consumed,
        max_lag=config.staleness.max_lag,
        vocabulary_size=local.model.policy.vocabulary_size,
        patience=patience,
        stop=stop,
        clock=clock,
    )
    return TrainingLoop(
        config=config,
        port=port,
        learner=local.learner,
        batches=batches,
        publisher=publisher,
        evaluator=Evaluator(local.maker, port, grader, local.model.encoder, patience, stop),
        archive=archive,
        checkpoints=_keeper(local, port, patience, publisher, feeder, consumed),
        consumed=consumed,
        sinks=sinks,
        clock=clock,
        patience=patience,
        stop=stop,
        step=local.step,
    )


def _publisher(
    local: LocalState, grant: RunGrant, port: TrainingPort, patience: Patience, clock: WaitClock
) -> Publisher:
    return Publisher(
        local.model.policy,
        port,
        local.config.weights,
        probes=probe_sequences(local.maker.held_out_prompts(), local.config.weights),
        latest_version=grant.latest_weight_version,
        directory=local.config.run.dir / "outgoing",
        patience=patience,
        clock=clock,
        sparsity=local.config.run.dir / "weights.jsonl",
    )


def _publish_first(local: LocalState, grant: RunGrant, publisher: Publisher, archive: VersionArchive) -> None:
    """Publishes the weights that training starts from, unless they are exactly the hub's latest version already.

    Equal bytes are not enough: the hub's latest may belong to a later step that is no more, and the staleness gate
    counts steps.
    """
    snapshot = publisher.snapshot(local.step)
    version = local.expected_version
    same = (
        grant.latest_weight_version == version
        and publisher.state_digest(snapshot) == grant.latest_state_digest
    )
    archive.keep(version if same else publisher.publish(snapshot), snapshot)


def _keeper(
    local: LocalState,
    port: TrainingPort,
    patience: Patience,
    publisher: Publisher,
    feeder: PromptFeeder,
    consumed: ConsumedGroups,
) -> CheckpointKeeper:
    config, checkpoint = local.config, local.checkpoint
    adapters = local.model.policy.adapters

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
            base_digest="" if adapters is None else adapters.base_digest,
        )

    store = CheckpointStore(
        config.run.dir / "checkpoints",
        keep=config.checkpoint.keep,
        max_failures=config.checkpoint.max_failures,
    )
    return CheckpointKeeper(
        store,
        local.learner,
        describe,
        model_files=[path for _, path in collect_model_files(local.model.directory)],
        port=port,
        patience=patience,
        newest=checkpoint.path if checkpoint else None,
        newest_step=local.step,
        sharded=config.checkpoint.layout == "sharded",
    )
