"""Weight versions: publishing, planning the way of a worker to one, and which blobs may go."""

from collections.abc import Collection, Sequence
from itertools import accumulate

from hetero_rl.errors import DamagedError, InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.stores.records import VersionRow
from hetero_rl.weights.manifest import check_follows
from hetero_rl.wire.messages import WeightEncoding, WeightManifest, WorkerState
from hetero_rl.wire.validation import check_manifest

__all__ = [
    "get_plan",
    "kept_versions",
    "latest_version",
    "message_size",
    "plan",
    "prune_versions",
    "publish_version",
]

_FULL_COPIES = {WeightEncoding.FULL_RAW, WeightEncoding.FULL_PLANES}


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
    check_manifest(manifest, run.request.limits.vocabulary_size)
    missing = [blob.digest for blob in manifest.blobs if not context.blobs.has(blob)]
    if missing:
        raise RefusedError(
            f"weight version {manifest.version} needs blob {missing[0]}, which is not stored: upload it first",
            "NOT_FOUND",
            {"digest": missing[0]},
        )
    if manifest.base_version:
        _check_delta(context, manifest)
    context.store.add_version(manifest)
    context.event("version_published", f"version {manifest.version} of step {manifest.step}")
    context.notify(Topic.WORK | Topic.VERSIONS)
    return False, prune_versions(context, {run.pruned_step, run.committed_step})


def _check_delta(context: HubContext, manifest: WeightManifest) -> None:
    """Refuses a delta that does not lead from a version of the run's history to this one, or that a worker cannot decode."""
    row, base = context.store.version(manifest.base_version), context.store.manifest(manifest.base_version)
    what = f"weight version {manifest.version} is a delta against {manifest.base_version}, which"
    if row is None or base is None:
        raise InvalidMessageError(f"{what} was never published: publish a full copy")
    if row.abandoned or row.pruned:
        state = "a resume took out of the history" if row.abandoned else "is no longer kept"
        raise InvalidMessageError(f"{what} {state}: publish a full copy")
    try:
        check_follows(manifest, base)
    except DamagedError as error:
        raise InvalidMessageError(f"{error}: publish a full copy", "WeightManifest.tensors") from error
    for worker in context.store.workers():
        working = worker.state not in {WorkerState.DEAD, WorkerState.LEFT}
        if working and WeightEncoding.ULP_DELTA not in worker.request.capabilities.weight_encodings:
            name = worker.request.worker_name
            raise RefusedError(
                f"worker {name} decodes no deltas: publish full copies, or install hetero-rl[codec] there",
                "INCOMPATIBLE",
                {"worker_name": name},
            )


def latest_version(context: HubContext) -> int:
    """Highest published version; 0 before the first."""
    return context.latest_version()


def get_plan(
    context: HubContext, held_version: int, wanted_version: int, encodings: Collection[WeightEncoding]
) -> tuple[WeightManifest, ...]:
    """Manifests that take a worker from the version it holds to the one it wants, in order.

    A way that would not fit into one message is cut off: whoever has gone the first part asks again from there.
    """
    wanted = wanted_version or context.latest_version()
    if wanted in {held_version, 0}:
        return ()
    manifest = context.store.manifest(wanted)
    if manifest is None:
        raise RefusedError(
            f"weight version {wanted} was never published", "UNKNOWN_VERSION", {"weight_version": str(wanted)}
        )
    kept = {row.version for row in context.store.versions()}
    if wanted not in kept:
        raise RefusedError(
            f"weight version {wanted} is no longer kept: ask for the latest",
            "NOT_FOUND",
            {"weight_version": str(wanted)},
        )
    manifests = [found for version in sorted(kept) if (found := context.store.manifest(version))]
    chain = plan(held_version, wanted, encodings, manifests)
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


def message_size(manifest: WeightManifest) -> int:
    """No fewer bytes than a manifest takes on the wire."""
    names = sum(
        len(name.encode()) + 4 for entry in manifest.tensors for name in (entry.name, *entry.tied_names)
    )
    numbers = sum(70 + 10 * len(entry.shape) for entry in manifest.tensors)
    digests = sum(len(entry.digest) + len(entry.base_digest) + 4 for entry in manifest.tensors)
    card = manifest.probe_card
    probe = len(card.token_ids) + len(card.log_probs) + 4 * len(card.lengths) + 100 if card else 0
    return names + numbers + digests + 100 * len(manifest.blobs) + probe + 150


def plan(
    held_version: int,
    wanted_version: int,
    encodings: Collection[WeightEncoding],
    manifests: Sequence[WeightManifest],
) -> tuple[WeightManifest, ...] | None:
    """The fewest bytes from one version to another, as manifests to apply in order; None when there is no way.

    A version is reached by its own full copy, or by a delta on top of its base version. Each is coded once, so there is
    one way back from the version wanted; it is cut off at the first version that is held or a full copy.

    Args:
        held_version: Version whose exact bytes the caller has; 0 is none.
        wanted_version: Version wanted, another than the one held.
        encodings: What the caller decodes.
        manifests: Every version that can be fetched.
    """
    by_version = {manifest.version: manifest for manifest in manifests}
    chain: list[WeightManifest] = []
    version = wanted_version
    while version != held_version:
        manifest = by_version.get(version)
        if manifest is None or manifest.encoding not in encodings:
            return None
        chain.insert(0, manifest)
        if manifest.encoding in _FULL_COPIES:
            break
        version = manifest.base_version
    return tuple(chain)


def kept_versions(
    versions: Sequence[VersionRow], checkpoints: Collection[int], asked: Collection[int]
) -> frozenset[int]:
    """Versions whose blobs stay: the latest two, the newest at or below each checkpoint's step, and those being fetched.

    The one before the latest stays because a worker may have been told of it a moment ago.

    Args:
        versions: Every version whose blobs are there, ascending.
        checkpoints: Steps of checkpoints that may be resumed from.
        asked: Versions that somebody may be fetching.
    """
    keep = {*asked, *(row.version for row in versions[-2:])}
    for step in checkpoints:
        at_or_below = [row.version for row in versions if row.step <= step and not row.abandoned]
        keep.update(at_or_below[-1:])
    return frozenset(keep)


def prune_versions(context: HubContext, checkpoints: Collection[int]) -> tuple[str, ...]:
    """Marks versions that nobody needs as pruned; returns digests of blobs to delete once that is durable."""
    rows = context.store.versions()
    manifests = {row.version: context.store.manifest(row.version) for row in rows}
    horizon = context.clock.monotonic() - context.settings.blob_grace
    asked_blobs = {digest: at for digest, at in context.liveness.blob_asked.items() if at >= horizon}
    context.liveness.blob_asked = asked_blobs
    blobs = {
        version: {blob.digest for blob in manifest.blobs}
        for version, manifest in manifests.items()
        if manifest
    }
    asked = {version for version, digests in blobs.items() if digests & asked_blobs.keys()}
    keep = set(kept_versions(rows, checkpoints, asked))
    for version in sorted(keep, reverse=True):  # what a kept delta builds on is kept, too
        manifest = manifests.get(version)
        while manifest is not None and manifest.base_version:
            keep.add(manifest.base_version)
            manifest = manifests.get(manifest.base_version)
    dropped = blobs.keys() - keep
    for version in sorted(dropped):
        context.store.mark_version_pruned(version)
    kept_blobs = {digest for version in blobs.keys() & keep for digest in blobs[version]} | _model_blobs(
        context
    )
    return tuple(sorted({digest for version in dropped for digest in blobs[version]} - kept_blobs))


def _model_blobs(context: HubContext) -> set[str]:
    run = context.store.run()
    return {file.blob.digest for file in run.request.model_files} if run else set()
