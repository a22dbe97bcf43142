"""Opening, describing, continuing and closing the run."""

import dataclasses

from hetero_rl.errors import RefusedError
from hetero_rl.hub.handlers.context import DescribedRun, HubContext, Topic
from hetero_rl.hub.handlers.leasing import release_leases
from hetero_rl.hub.handlers.queue import train_credits
from hetero_rl.hub.stores.records import GroupState, RunRecord, RunState, StepCommit
from hetero_rl.wire.messages import RunDescription, RunGrant, RunRequest
from hetero_rl.wire.validation import check_run_request

__all__ = ["close_run", "describe_run", "open_run"]


def describe_run(context: HubContext) -> RunDescription:
    """What a worker must know; refused until the files it needs are stored."""
    run = context.open_run()
    missing = [file.name for file in run.request.model_files if not context.blobs.has(file.blob)]
    if missing:
        raise RefusedError(
            f"the trainer is still uploading model files ({', '.join(missing)}): come back later",
            "RUN_NOT_OPEN",
        )
    return description_of(context, run)


def description_of(context: HubContext, run: RunRecord) -> RunDescription:
    """The description of a run in any state."""
    latest = context.latest_version()
    known = context.description
    if known is None or known.run is not run or known.description.latest_weight_version != latest:
        # Every submission is held against it.
        known = context.description = DescribedRun(run, _describe(run.request, latest))
    return known.description


def _describe(request: RunRequest, latest_version: int) -> RunDescription:
    return RunDescription(
        run_id=request.run_id,
        model_digests=request.model_digests,
        model_files=request.model_files,
        sampling=request.sampling,
        limits=request.limits,
        latest_weight_version=latest_version,
        adapter_weights=request.adapter_weights,
    )


def open_run(context: HubContext, request: RunRequest) -> RunGrant:
    """Opens a new run, or continues the journal's from a checkpoint; fences every trainer before this one."""
    check_run_request(request)
    run = context.store.run()
    if run is None:
        run = _new_run(context, request)
    else:
        _check_same_run(run, request)
        run = _rewind(context, run, request)
    context.store.put_run(run)
    context.liveness.trainer_connected = True
    context.notify(Topic.WORK | Topic.RESULTS)
    latest = context.store.latest_version()
    return RunGrant(
        trainer_epoch=run.trainer_epoch,
        latest_weight_version=latest.version if latest else 0,
        latest_state_digest=latest.state_digest if latest else "",
        next_train_ordinal=context.store.next_train_ordinal(),
        credits=train_credits(context, run),
        adapter_weights=request.adapter_weights,
    )


def _new_run(context: HubContext, request: RunRequest) -> RunRecord:
    if request.resume_step:
        raise RefusedError(
            f"resume_step is {request.resume_step}, but the hub's journal is empty: start the hub in the run's own "
            "directory, or begin a new run",
            "INCOMPATIBLE",
        )
    context.event("run_opened", f"run {request.run_id} opened, {request.total_steps} steps")
    return RunRecord(request=request, trainer_epoch=1, state=RunState.OPEN)


def _check_same_run(run: RunRecord, request: RunRequest) -> None:
    known = run.request
    if request.run_id != known.run_id:
        raise RefusedError(
            f"this hub holds run {known.run_id!r}, not {request.run_id!r}: use another run directory",
            "WRONG_RUN",
            {"run_id": known.run_id},
        )
    if request.model_digests != known.model_digests:
        raise RefusedError(
            "the model configuration or tokenizer differs from the one that the run began with",
            "MODEL_MISMATCH",
            {
                "expected_config_digest": known.model_digests.config,
                "actual_config_digest": request.model_digests.config,
                "expected_tokenizer_digest": known.model_digests.tokenizer,
                "actual_tokenizer_digest": request.model_digests.tokenizer,
            },
        )
    if request.groups_per_step != known.groups_per_step:
        raise RefusedError(
            f"groups_per_step is {request.groups_per_step}, but the run began with {known.groups_per_step}: groups are "
            "assigned to steps by it; keep it, or begin a new run",
            "INCOMPATIBLE",
        )
    if request.max_lag < known.max_lag:
        raise RefusedError(
            f"max_lag is {request.max_lag}, but groups were admitted under {known.max_lag}: keep it, raise it, or begin a "
            "new run",
            "INCOMPATIBLE",
        )


def _rewind(context: HubContext, run: RunRecord, request: RunRequest) -> RunRecord:
    """Takes the run back to the checkpoint that is continued."""
    step = request.resume_step
    if step < run.pruned_step:
        raise RefusedError(
            f"resume_step is {step}, but data of steps up to {run.pruned_step} was pruned behind a newer checkpoint: "
            "resume from the newest checkpoint",
            "INCOMPATIBLE",
        )
    epoch = run.trainer_epoch + 1
    _commit_without_outcomes(context, run, step, epoch)
    abandoned = context.store.abandon_after(step)
    returned = 0
    for later in range(step + 1, context.store.last_assigned_step() + 1):
        for row in context.store.groups_of_step(later):
            context.store.put_group(dataclasses.replace(row, state=GroupState.FINISHED))
            returned += 1
    _release_abandoned_leases(context, step)
    context.event(
        "run_resumed",
        f"run {request.run_id} resumed at step {step}: {abandoned} steps abandoned, {returned} groups handed out again",
    )
    return RunRecord(
        request=request,
        trainer_epoch=epoch,
        state=RunState.OPEN,
        committed_step=step,
        pruned_step=run.pruned_step,
    )


def _release_abandoned_leases(context: HubContext, step: int) -> None:
    """Ends the leases of work that began under weights which are no longer part of the history.

    Going on under the weights that follow, such a completion would hold tokens from fewer steps than it was admitted with,
    and no bound of its lag would hold.
    """
    started = {lease: context.store.version(lease.min_weight_version) for lease in context.store.leases()}
    lost = [lease for lease, version in started.items() if version is not None and version.step > step]
    release_leases(context, lost)
    if lost:
        context.event(
            "leases_returned", f"{len(lost)} leases ended: their weights were made after step {step}"
        )


def _commit_without_outcomes(context: HubContext, run: RunRecord, step: int, epoch: int) -> None:
    """Counts steps as trained that are in the checkpoint but whose commit never arrived."""
    if step > context.store.last_assigned_step():
        raise RefusedError(
            f"resume_step is {step}, but the journal knows steps up to {context.store.last_assigned_step()}: this is not "
            "the hub of that checkpoint",
            "INCOMPATIBLE",
        )
    for missing in range(run.committed_step + 1, step + 1):
        for row in context.store.groups_of_step(missing):
            context.store.put_group(dataclasses.replace(row, state=GroupState.COMMITTED))
        context.store.add_commit(
            StepCommit(
                step=missing,
                trainer_epoch=epoch,
                committed_at=context.clock.wall(),
                outcomes=(),
                log_probs=None,
            )
        )
        context.store.count("steps_without_outcomes")


def close_run(context: HubContext, trainer_epoch: int, *, complete: bool) -> None:
    """Ends the run, or leaves it to be continued."""
    run = context.trainer_run(trainer_epoch)
    state = RunState.COMPLETE if complete else RunState.DETACHED
    context.store.put_run(dataclasses.replace(run, state=state))
    context.liveness.trainer_connected = False
    context.event(
        "run_closed", f"run {run.request.run_id} {'is complete' if complete else 'can be continued'}"
    )
    context.notify(Topic.WORK | Topic.RESULTS | Topic.VERSIONS)
