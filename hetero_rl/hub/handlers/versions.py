"""Weight versions: publishing, planning the way of a worker to one, and which blobs may go.

A version becomes known with one manifest, usually a delta. Others may follow (`add_route`): a full copy for late joiners, a
merged delta for a worker that is behind. The hub never looks into a blob; which bytes are right, digests say.
"""

import logging
from collections.abc import Collection
from itertools import accumulate

from hetero_rl.errors import DamagedError, InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.handlers.routes import kept_versions, message_size, needed_ways, plan
from hetero_rl.weights.manifest import check_follows
from hetero_rl.wire.messages import WeightEncoding, WeightManifest, WorkerState
from hetero_rl.wire.validation import check_manifest

__all__ = [
    "add_route",
    "get_plan",
    "latest_version",
    "note_damaged",
    "note_lost_blobs",
    "prune_versions",
    "publish_version",
    "unnamed_blobs",
    "wanted_bases",
]

_logger = logging.getLogger(__name__)

_MOST_WANTED_BASES = 4
_MANY_DELTAS = 3
_GONE = {WorkerState.DEAD, WorkerState.LEFT}


def publish_version(
    context: HubContext, trainer_epoch: int, manifest: WeightManifest
) -> tuple[bool, tuple[str, ...]]:
    """Makes a version known.

    Returns:
        Whether exactly this version was known already, and digests of blobs to delete once the call is durable.
    """
    run = context.trainer_run(trainer_epoch)
    known = context.store.manifest(manifest.version)
    if known == manifest:
        return True, ()
    latest = context.latest_version()
    if known is not None or manifest.version <= latest:
        raise InvalidMessageError(
            f"weight version {manifest.version} is not above the latest, {latest}: versions are never reused"
        )
    _check_complete(context, manifest, run.request.limits.vocabulary_size)
    if manifest.base_version:
        _check_delta(context, manifest)
    _check_kind(context, manifest, adapter_weights=run.request.adapter_weights)
    context.store.add_version(manifest)
    what = f", adapters of rank {manifest.adapter.rank}" if manifest.adapter is not None else ""
    context.event("version_published", f"version {manifest.version} of step {manifest.step}{what}")
    context.notify(Topic.WORK | Topic.VERSIONS)
    return False, prune_versions(context, {run.pruned_step, run.committed_step})


def add_route(
    context: HubContext, trainer_epoch: int, manifest: WeightManifest
) -> tuple[bool, tuple[str, ...]]:
    """Makes another way to a published version known.

    Returns:
        Whether exactly this way was known already, and digests of blobs to delete once the call is durable.
    """
    run = context.trainer_run(trainer_epoch)
    version, base_version = manifest.version, manifest.base_version
    own = context.store.manifest(version)
    if own is None:
        raise InvalidMessageError(f"weight version {version} was never published: publish it first")
    known = own if own.base_version == base_version else context.store.route(version, base_version)
    if known == manifest:
        return True, ()
    if known is not None:
        raise InvalidMessageError(f"another way from version {base_version} to {version} is known already")
    _check_complete(context, manifest, run.request.limits.vocabulary_size)
    _check_same_state(manifest, own)
    if base_version:
        _check_base(context, manifest)
    context.store.add_route(manifest)
    what = f"as a delta against version {base_version}" if base_version else "as a full copy"
    context.event("weight_route_added", f"version {version} {what}")
    return False, prune_versions(context, {run.pruned_step, run.committed_step})


def _check_complete(context: HubContext, manifest: WeightManifest, vocabulary_size: int) -> None:
    """Refuses a manifest that contradicts itself, or whose blobs are not all stored."""
    check_manifest(manifest, vocabulary_size)
    missing = [blob.digest for blob in manifest.blobs if not context.blobs.has(blob)]
    if missing:
        raise RefusedError(
            f"weight version {manifest.version} needs blob {missing[0]}, which is not stored: upload it first",
            "NOT_FOUND",
            {"digest": missing[0]},
        )


def _check_same_state(manifest: WeightManifest, own: WeightManifest) -> None:
    """Refuses another way that does not lead to the very bytes of the version."""

    def state(of: WeightManifest) -> object:
        tensors = [
            (entry.name, entry.data_type, entry.shape, entry.digest, entry.tied_names) for entry in of.tensors
        ]
        return of.step, of.state_digest, of.probe_card, of.adapter, tensors

    if state(manifest) != state(own):
        raise InvalidMessageError(
            f"the other way to weight version {own.version} leads to other tensors, another step or another probe card "
            "than were published",
            "WeightManifest.state_digest",
        )


def _check_base(context: HubContext, manifest: WeightManifest) -> None:
    """Refuses a delta that does not lead from a version of the run's history to this one."""
    row, base = context.store.version(manifest.base_version), context.store.manifest(manifest.base_version)
    what = f"weight version {manifest.version} is a delta against {manifest.base_version}, which"
    if row is None or base is None:
        raise InvalidMessageError(f"{what} was never published: publish a full copy")
    if row.abandoned:
        raise InvalidMessageError(f"{what} a resume took out of the history: publish a full copy")
    try:
        check_follows(manifest, base)
    except DamagedError as error:
        raise InvalidMessageError(f"{error}: publish a full copy", "WeightManifest.tensors") from error


def _check_delta(context: HubContext, manifest: WeightManifest) -> None:
    """Refuses a delta that does not lead from a version of the run's history to this one, or that a worker cannot decode."""
    _check_base(context, manifest)
    row = context.store.version(manifest.base_version)
    if row is not None and row.pruned:
        raise InvalidMessageError(
            f"weight version {manifest.version} is a delta against {manifest.base_version}, which is no longer kept: "
            "publish a full copy"
        )
    if plan(0, manifest.base_version, frozenset(WeightEncoding), _sound_manifests(context)) is None:
        raise InvalidMessageError(
            f"weight version {manifest.version} is a delta against {manifest.base_version}, to which no way is left from "
            "nothing, because blobs were damaged: publish a full copy"
        )
    for worker in context.store.workers():
        working = worker.state not in _GONE
        if working and WeightEncoding.ULP_DELTA not in worker.request.capabilities.weight_encodings:
            name = worker.request.worker_name
            raise RefusedError(
                f"worker {name} decodes no deltas: publish full copies, or install hetero-rl[codec] there",
                "INCOMPATIBLE",
                {"worker_name": name},
            )


def _check_kind(context: HubContext, manifest: WeightManifest, *, adapter_weights: bool) -> None:
    """Refuses adapters in a run that did not announce them, and where a worker that joined before cannot load them."""
    if manifest.adapter is None:
        return
    if not adapter_weights:
        raise InvalidMessageError(
            f"weight version {manifest.version} holds adapters, but the run was opened without adapter_weights",
            "WeightManifest.adapter",
        )
    for worker in context.store.workers():
        if worker.state not in _GONE and not worker.request.capabilities.adapters:
            name = worker.request.worker_name
            raise RefusedError(
                f'worker {name} loads no adapters: install a newer hetero-rl there, drain it, or set trainer.lora.publish = "merged"',
                "INCOMPATIBLE",
                {"worker_name": name},
            )


def latest_version(context: HubContext) -> int:
    """Highest published version; 0 before the first."""
    return context.latest_version()


def wanted_bases(context: HubContext) -> tuple[int, ...]:
    """Versions that workers hold and from which three deltas or more lead to the latest: one would be smaller.

    Two are let be: most workers are that far behind for a moment, and a merged delta takes the trainer's time and line.
    """
    latest = context.latest_version()
    manifests = _kept_manifests(context)
    encodings = frozenset(WeightEncoding)
    wanted = []
    for held in sorted(_held_versions(context) - {latest}, reverse=True):
        way = plan(held, latest, encodings, manifests) or ()
        row = context.store.version(held)
        if len(way) >= _MANY_DELTAS and row is not None and not row.abandoned:
            wanted.append(held)
    return tuple(wanted[:_MOST_WANTED_BASES])


def get_plan(
    context: HubContext, held_version: int, wanted_version: int, encodings: Collection[WeightEncoding]
) -> tuple[WeightManifest, ...]:
    """Manifests that take a worker from the version it holds to the one it wants, in order.

    A way that would not fit into one message is cut off: whoever has gone the first part asks again from there.
    """
    wanted = wanted_version or context.latest_version()
    if wanted in {held_version, 0}:
        return ()
    if context.store.version(wanted) is None:
        raise RefusedError(
            f"weight version {wanted} was never published", "UNKNOWN_VERSION", {"weight_version": str(wanted)}
        )
    manifests = _kept_manifests(context)
    if not any(manifest.version == wanted for manifest in manifests):
        raise RefusedError(
            f"weight version {wanted} is no longer kept: ask for the latest",
            "NOT_FOUND",
            {"weight_version": str(wanted)},
        )
    chain = plan(held_version, wanted, encodings, _sound_manifests(context))
    if chain is None and (way := plan(held_version, wanted, encodings, manifests)):
        lost = next(blob.digest for item in way for blob in item.blobs if not context.blobs.has(blob))
        raise RefusedError(
            f"weight version {wanted} cannot be had, because blob {lost} was damaged: the next version comes as a full copy",
            "NOT_FOUND",
            {"weight_version": str(wanted), "digest": lost},
        )
    if chain is None:
        names = ", ".join(sorted(encoding.name for encoding in encodings)) or "none"
        raise RefusedError(
            f"weight version {wanted} cannot be reached with the encodings that the worker decodes ({names}): "
            "deltas need hetero-rl[codec] there",
            "INCOMPATIBLE",
        )
    chain = _first_part(chain, context.settings.max_message_bytes // 2)
    now = context.clock.monotonic()
    for blob in (blob for item in chain for blob in item.blobs):
        context.liveness.blob_asked[blob.digest] = now
    return chain


def _first_part(chain: tuple[WeightManifest, ...], limit: int) -> tuple[WeightManifest, ...]:
    """As much of a way as fits into a number of bytes; one manifest at least."""
    sizes = accumulate(map(message_size, chain))
    return chain[: max(1, sum(size <= limit for size in sizes))]


def _kept_manifests(context: HubContext) -> tuple[WeightManifest, ...]:
    """Every coding of every version whose blobs are there."""
    own = [context.store.manifest(row.version) for row in context.store.versions()]
    return (*(manifest for manifest in own if manifest is not None), *context.store.routes())


def _sound_manifests(context: HubContext) -> tuple[WeightManifest, ...]:
    """The kept manifests whose blobs are all there, which those are not that were found to be damaged."""
    return tuple(
        manifest
        for manifest in _kept_manifests(context)
        if all(context.blobs.has(blob) for blob in manifest.blobs)
    )


def note_lost_blobs(context: HubContext) -> None:
    """Names blobs that are not there, or not whole, as a hub finds them when it starts."""
    manifests, run = _kept_manifests(context), context.store.run()
    needed = [(blob, f"weight version {item.version}") for item in manifests for blob in item.blobs]
    if run is not None and manifests:  # a trainer uploads the model's files before its first version
        needed += [(file.blob, f"model file {file.name}") for file in run.request.model_files]
    for blob, what in needed:
        if not context.blobs.has(blob):
            note_damaged(context, f"blob {blob.digest} of {what} is not there with its {blob.size} bytes")


def note_damaged(context: HubContext, message: str) -> None:
    """Tells whoever watches the run that a blob was damaged."""
    _logger.error("%s", message)
    context.store.count("blobs_damaged")
    context.event("blob_damaged", message)


def _held_versions(context: HubContext) -> set[int]:
    """Versions that working workers last said to have loaded."""
    loaded = context.liveness.loaded
    working = [worker for worker in context.store.workers() if worker.state not in _GONE]
    return {loaded.get(worker.request.worker_name, 0) for worker in working} - {0}


def prune_versions(context: HubContext, checkpoints: Collection[int]) -> tuple[str, ...]:
    """Marks codings as pruned that no worker, checkpoint or late joiner needs.

    Returns:
        Digests of blobs to delete once that is durable.
    """
    manifests = _kept_manifests(context)
    asked = _asked_blobs(context)
    fetched = {
        (manifest.version, manifest.base_version)
        for manifest in manifests
        if any(blob.digest in asked for blob in manifest.blobs)
    }
    targets = kept_versions(context.store.versions(), checkpoints, {version for version, _ in fetched})
    needed = needed_ways(manifests, targets, _held_versions(context), context.latest_version()) | fetched
    needed |= {
        _own_way(context, version) for version in kept_versions(context.store.versions(), checkpoints, ())
    }
    kept, dropped = _split(manifests, needed)
    for manifest in dropped:
        if context.store.route(manifest.version, manifest.base_version) is None:
            context.store.mark_version_pruned(manifest.version)
        else:
            context.store.mark_route_pruned(manifest.version, manifest.base_version)
    named = _blobs_of(kept) | _model_blobs(context)
    return tuple(sorted(_blobs_of(dropped) - named))


def _own_way(context: HubContext, version: int) -> tuple[int, int]:
    """The coding that a version was published with: the next delta is only taken against a version that has it."""
    manifest = context.store.manifest(version)
    return version, manifest.base_version if manifest is not None else 0


def _split(
    manifests: Collection[WeightManifest], needed: Collection[tuple[int, int]]
) -> tuple[list[WeightManifest], list[WeightManifest]]:
    kept = [item for item in manifests if (item.version, item.base_version) in needed]
    return kept, [item for item in manifests if (item.version, item.base_version) not in needed]


def _asked_blobs(context: HubContext) -> Collection[str]:
    """Blobs that somebody has asked for within the grace."""
    horizon = context.clock.monotonic() - context.settings.blob_grace
    asked = {digest: at for digest, at in context.liveness.blob_asked.items() if at >= horizon}
    context.liveness.blob_asked = asked
    return asked.keys()


def unnamed_blobs(context: HubContext) -> tuple[str, ...]:
    """Withdraws blobs that nothing has named for longer than the grace; returns the digests whose bytes are to be purged.

    Such blobs are what is left of a publication that ended before its manifest, or of an upload that was given up.
    """
    now = context.clock.monotonic()
    named = _blobs_of(_kept_manifests(context)) | _model_blobs(context)
    since = context.liveness.unnamed
    context.liveness.unnamed = {
        digest: since.get(digest, now) for digest in context.blobs.digests() if digest not in named
    }
    old = [
        digest
        for digest, first in context.liveness.unnamed.items()
        if now - first >= context.settings.unnamed_grace
    ]
    for digest in old:
        context.blobs.withdraw(digest)
        del context.liveness.unnamed[digest]
    if old:
        context.store.count("blobs_swept", len(old))
    return tuple(sorted(old))


def _blobs_of(manifests: Collection[WeightManifest]) -> set[str]:
    return {blob.digest for manifest in manifests for blob in manifest.blobs}


def _model_blobs(context: HubContext) -> set[str]:
    run = context.store.run()
    return {file.blob.digest for file in run.request.model_files} if run else set()
