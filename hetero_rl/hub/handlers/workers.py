"""Workers: joining, staying alive, being trusted, leaving."""

import dataclasses
import math

from hetero_rl.errors import FencedError, RefusedError
from hetero_rl.hub.handlers.context import HubContext, Topic, WorkerReport
from hetero_rl.hub.handlers.damage import note_damage
from hetero_rl.hub.handlers.identity import current_worker, state_alive
from hetero_rl.hub.handlers.leasing import expire_leases, release_leases
from hetero_rl.hub.stores.records import ProbeRow, RunRecord, SyncRow, WorkerRow
from hetero_rl.wire.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinGrant,
    JoinRequest,
    ProbeResult,
    WorkerIdentity,
    WorkerState,
)
from hetero_rl.wire.validation import check_join_request

__all__ = ["drain", "heartbeat", "join", "leave", "quarantine", "readmit", "report_probe", "sweep"]

_GONE = {WorkerState.DEAD, WorkerState.LEFT}
_REMEMBERED_BOOT_IDS = 64


def join(context: HubContext, request: JoinRequest) -> JoinGrant:
    """Makes a worker known. The same boot id gets the same epoch again; a new one fences the process before it."""
    check_join_request(request)
    _check_fits(context.open_run(), request)
    known = context.store.worker(request.worker_name)
    if known is not None and request.boot_id in known.former_boot_ids:
        raise FencedError(
            f"another process joined under the name {request.worker_name!r} after this one: stop this one, or give it "
            "another name"
        )
    if known is not None and known.request.boot_id == request.boot_id:
        worker = _rejoin(context, known, request)
    else:
        worker = _admit(context, known, request)
    context.store.put_worker(worker)
    context.liveness.seen[request.worker_name] = context.clock.monotonic()
    settings = context.settings
    return JoinGrant(
        worker_epoch=worker.worker_epoch,
        lease_duration=settings.lease_seconds,
        heartbeat_interval=settings.heartbeat_seconds,
        dead_after=settings.dead_after,
        latest_weight_version=context.latest_version(),
    )


def _check_fits(run: RunRecord, request: JoinRequest) -> None:
    expected, actual = run.request.model_digests, request.model_digests
    if request.run_id != run.request.run_id:
        raise RefusedError(
            f"this hub serves run {run.request.run_id!r}, not {request.run_id!r}",
            "WRONG_RUN",
            {"run_id": run.request.run_id},
        )
    if actual != expected:
        raise RefusedError(
            f"the model of worker {request.worker_name!r} is not the trainer's: configuration {actual.config} here and "
            f"{expected.config} there, tokenizer {actual.tokenizer} here and {expected.tokenizer} there",
            "MODEL_MISMATCH",
            {
                "expected_config_digest": expected.config,
                "actual_config_digest": actual.config,
                "expected_tokenizer_digest": expected.tokenizer,
                "actual_tokenizer_digest": actual.tokenizer,
            },
        )
    sampling = run.request.sampling
    if not sampling.portable and not request.capabilities.processed_log_probs:
        raise RefusedError(
            f"the run samples with temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}, but "
            f"worker {request.worker_name!r} reports log-probabilities before them: use temperature 1, top_p 1, top_k 0, "
            "or a backend that reports the processed distribution",
            "SAMPLING_CONTRACT",
        )
    if run.request.adapter_weights and not request.capabilities.adapters:
        raise RefusedError(
            f'the run publishes adapters on a frozen base (trainer.lora.publish = "adapter"), which worker '
            f"{request.worker_name!r} of backend {request.backend!r}, hetero-rl {request.software_version}, does not say that it "
            'loads: install a newer hetero-rl there, use an engine that does, or set trainer.lora.publish = "merged"',
            "INCOMPATIBLE",
            {"worker_name": request.worker_name},
        )
    if request.capabilities.max_sequence_tokens <= sampling.max_new_tokens:
        raise RefusedError(
            f"worker {request.worker_name!r} takes sequences of {request.capabilities.max_sequence_tokens} tokens, but the "
            f"run's completions have up to {sampling.max_new_tokens}",
            "INCOMPATIBLE",
        )


def _rejoin(context: HubContext, known: WorkerRow, request: JoinRequest) -> WorkerRow:
    if known.state not in _GONE:
        return dataclasses.replace(known, request=request)
    context.event("worker_returned", "joined again with the same process", request.worker_name)
    return dataclasses.replace(known, request=request, state=state_alive(known), state_reason="")


def _admit(context: HubContext, known: WorkerRow | None, request: JoinRequest) -> WorkerRow:
    context.event("worker_joined", f"{request.backend}, {request.numerics.device_name}", request.worker_name)
    context.liveness.reports.pop(request.worker_name, None)
    if known is None:
        return WorkerRow(request=request, worker_epoch=1, state=WorkerState.ACTIVE)
    release_leases(context, context.store.leases(request.worker_name))
    former = (*known.former_boot_ids, known.request.boot_id)[-_REMEMBERED_BOOT_IDS:]
    # A restart is how people repair a worker, so it ends a quarantine; the probe card decides whether it worked.
    distrusted = known.state is WorkerState.QUARANTINED or known.must_pass_probe
    return WorkerRow(
        request=request,
        worker_epoch=known.worker_epoch + 1,
        state=WorkerState.ACTIVE,
        must_pass_probe=distrusted,
        former_boot_ids=former,
    )


def heartbeat(context: HubContext, beat: Heartbeat) -> HeartbeatReply:
    """Renews the worker and the leases it names; names those it has lost."""
    worker = current_worker(context, beat.worker)
    now = context.clock.monotonic()
    held = {lease.lease_id for lease in context.store.leases(beat.worker.worker_name)}
    lost = []
    for lease_id in beat.lease_ids:
        if lease_id in held:
            context.liveness.lease_ends[lease_id] = now + context.settings.lease_seconds
        else:
            lost.append(lease_id)
    context.liveness.loaded[beat.worker.worker_name] = beat.loaded_weight_version
    context.liveness.reports[beat.worker.worker_name] = WorkerReport(
        loaded_weight_version=beat.loaded_weight_version,
        generated_tokens=beat.generated_tokens,
        busy_seconds=beat.busy_seconds,
    )
    _note_syncs(context, beat)
    return HeartbeatReply(
        lost_lease_ids=tuple(lost), latest_weight_version=context.latest_version(), state=worker.state
    )


def _note_syncs(context: HubContext, beat: Heartbeat) -> None:
    """Journals how the worker came to weight versions; what went wrong on the way becomes an event."""
    name, now = beat.worker.worker_name, context.clock.wall()
    for sync in beat.weight_syncs:
        row = SyncRow(worker_name=name, worker_epoch=beat.worker.worker_epoch, sync=sync, occurred_at=now)
        if not context.store.add_sync(row):
            continue  # the answer to the heartbeat before was lost
        for kind, times in (("weights_damaged", sync.fallbacks), ("relay_bypassed", sync.relay_bypasses)):
            if times:
                context.store.count(kind, times)
                context.event(kind, f"{times} times on the way to weight version {sync.weight_version}", name)


def report_probe(
    context: HubContext, identity: WorkerIdentity, result: ProbeResult, numerics_id: str
) -> bool:
    """Journals a scored probe card; a worker beyond the card's tolerance is quarantined."""
    worker = current_worker(context, identity)
    manifest = context.store.manifest(result.weight_version)
    if manifest is None or manifest.probe_card is None:
        raise RefusedError(
            f"weight version {result.weight_version} has no probe card",
            "UNKNOWN_VERSION",
            {"field": "weight_version"},
        )
    tolerance = manifest.probe_card.tolerance
    result = _without_nan(result)
    accepted = result.mean_absolute_difference <= tolerance
    probe = ProbeRow(
        worker_name=identity.worker_name,
        worker_epoch=identity.worker_epoch,
        numerics_id=numerics_id,
        result=result,
        accepted=accepted,
        occurred_at=context.clock.wall(),
    )
    context.store.add_probe(probe)
    worker = dataclasses.replace(
        worker, last_probe=result, must_pass_probe=worker.must_pass_probe and not accepted
    )
    context.store.put_worker(worker)
    context.notify(Topic.WORK)
    if not accepted:
        context.store.count("probes_failed")
        _distrust(
            context,
            worker,
            f"probe card of version {result.weight_version}: mean |difference| {result.mean_absolute_difference:.4g} is above "
            f"the tolerance {tolerance:.4g}",
        )
    return accepted


def _without_nan(result: ProbeResult) -> ProbeResult:
    """NaN as infinity: further off than any tolerance, and a number to the journal."""

    def known(value: float) -> float:
        return math.inf if math.isnan(value) else value

    return dataclasses.replace(
        result,
        mean_absolute_difference=known(result.mean_absolute_difference),
        max_absolute_difference=known(result.max_absolute_difference),
        mean_difference=known(result.mean_difference),
    )


def _distrust(context: HubContext, worker: WorkerRow, reason: str) -> None:
    name = worker.request.worker_name
    release_leases(context, context.store.leases(name))
    context.store.put_worker(dataclasses.replace(worker, state=WorkerState.QUARANTINED, state_reason=reason))
    context.event("worker_quarantined", reason, name)
    context.notify(Topic.WORK)


def leave(context: HubContext, identity: WorkerIdentity, reason: str) -> None:
    """Gives the worker's leases back and remembers that it left; harmless to repeat."""
    worker = current_worker(context, identity, alive=False)
    if worker.state is WorkerState.LEFT:
        return
    release_leases(context, context.store.leases(identity.worker_name))
    context.store.put_worker(dataclasses.replace(worker, state=WorkerState.LEFT, state_reason=reason))
    context.event("worker_left", reason, identity.worker_name)


def sweep(context: HubContext) -> None:
    """Declares silent workers dead, ends the leases whose time is over, and tells of rows that were found damaged."""
    note_damage(context)
    now = context.clock.monotonic()
    for worker in context.store.workers():
        name = worker.request.worker_name
        if worker.state in _GONE:
            continue
        silence = now - context.liveness.seen.setdefault(name, now)
        if silence <= context.settings.dead_after:
            continue
        release_leases(context, context.store.leases(name))
        # Quarantine outlives death: the state says dead, the probe card must still be passed.
        distrusted = worker.must_pass_probe or worker.state is WorkerState.QUARANTINED
        context.store.put_worker(
            dataclasses.replace(
                worker,
                state=WorkerState.DEAD,
                state_reason=f"not heard for {silence:.1f} s",
                must_pass_probe=distrusted,
            )
        )
        context.store.count("workers_declared_dead")
        context.event("worker_dead", f"not heard for {silence:.1f} s; its leases were given back", name)
    expire_leases(context)


def _known_worker(context: HubContext, worker_name: str) -> WorkerRow:
    worker = context.store.worker(worker_name)
    if worker is None:
        names = ", ".join(worker.request.worker_name for worker in context.store.workers()) or "none"
        raise RefusedError(f"no worker is named {worker_name!r}; known: {names}", "NOT_FOUND")
    return worker


def drain(context: HubContext, worker_name: str) -> None:
    """Stops giving a worker new work; it finishes what it has."""
    worker = _known_worker(context, worker_name)
    if worker.state is not WorkerState.ACTIVE:
        raise RefusedError(
            f"worker {worker_name!r} is {worker.state.name.lower()}, not active", "INCOMPATIBLE"
        )
    context.store.put_worker(
        dataclasses.replace(worker, state=WorkerState.DRAINING, state_reason="asked to drain", draining=True)
    )
    context.event("worker_draining", "asked to drain", worker_name)
    context.notify(Topic.WORK)


def quarantine(context: HubContext, worker_name: str, reason: str) -> None:
    """Stops trusting a worker and takes its leases away."""
    _distrust(context, _known_worker(context, worker_name), reason or "asked for")


def readmit(context: HubContext, worker_name: str) -> None:
    """Ends a quarantine; the worker gets work once it has passed a probe card."""
    worker = _known_worker(context, worker_name)
    if worker.state is not WorkerState.QUARANTINED:
        raise RefusedError(
            f"worker {worker_name!r} is {worker.state.name.lower()}, not quarantined", "INCOMPATIBLE"
        )
    context.store.put_worker(
        dataclasses.replace(worker, state=WorkerState.ACTIVE, state_reason="readmitted", must_pass_probe=True)
    )
    context.event("worker_readmitted", "gets work after it passes a probe card", worker_name)
    context.notify(Topic.WORK)
