"""Which manifests take a worker to a weight version for the fewest bytes, and which of them nobody needs. Pure functions.

    nothing ──full copy──► 1 ──delta──► 2 ──delta──► 3 ──delta──► 4 ──delta──► 5
       │                   └──────── merged delta ───────────────►┘            ▲
       └──────────────────────────── full copy ────────────────────────────────┘

A manifest is one edge: from its base version, or from nothing, to its version. Bases are older than what is built on
them, so one pass in the order of the versions finds every cheapest way.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from hetero_rl.hub.stores.records import VersionRow
from hetero_rl.wire.messages import WeightEncoding, WeightManifest

__all__ = ["kept_versions", "message_size", "needed_ways", "plan", "way_size"]


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


def way_size(manifests: Iterable[WeightManifest]) -> int:
    """Bytes that a way costs on the line: its blobs, and about what its manifests take."""
    return sum(message_size(item) + sum(blob.size for blob in item.blobs) for item in manifests)


@dataclasses.dataclass(frozen=True, slots=True)
class _Reached:
    """The cheapest way known to a version."""

    size: int
    steps: int
    last: WeightManifest | None


def plan(
    held_version: int,
    wanted_version: int,
    encodings: Collection[WeightEncoding],
    manifests: Sequence[WeightManifest],
) -> tuple[WeightManifest, ...] | None:
    """The fewest bytes from one version to another, as manifests to apply in order; None when there is no way.

    Of two ways of the same size the one with fewer manifests is taken.

    Args:
        held_version: Version whose exact bytes the caller has; 0 is none.
        wanted_version: Version wanted, another than the one held.
        encodings: What the caller decodes.
        manifests: Every coding of every version that can be fetched.
    """
    reached = {0: _Reached(0, 0, None), held_version: _Reached(0, 0, None)}
    for manifest in sorted(manifests, key=lambda item: (item.version, item.base_version)):
        base = reached.get(manifest.base_version)
        if base is None or manifest.encoding not in encodings or not 0 < manifest.version <= wanted_version:
            continue
        found = _Reached(base.size + way_size((manifest,)), base.steps + 1, manifest)
        known = reached.get(manifest.version)
        if known is None or (found.size, found.steps) < (known.size, known.steps):
            reached[manifest.version] = found
    return _way_back(reached, wanted_version)


def _way_back(reached: Mapping[int, _Reached], wanted_version: int) -> tuple[WeightManifest, ...] | None:
    if wanted_version not in reached:
        return None
    way: list[WeightManifest] = []
    last = reached[wanted_version].last
    while last is not None:
        way.insert(0, last)
        last = reached[last.base_version].last
    return tuple(way)


def needed_ways(
    manifests: Sequence[WeightManifest],
    targets: Collection[int],
    held_versions: Collection[int],
    latest: int,
) -> frozenset[tuple[int, int]]:
    """The codings, as (version, base version), that some way leads through.

    Late joiners and resumed runs come from nothing to a target; workers come from what they hold to the latest version.

    Args:
        manifests: Every coding whose blobs are there.
        targets: Versions that somebody may begin with.
        held_versions: What workers hold.
        latest: Where workers go.
    """
    pairs = {(0, target) for target in targets}
    pairs |= {(held, latest) for held in held_versions if held != latest}
    needed: set[tuple[int, int]] = set()
    for held, wanted in pairs:
        way = plan(held, wanted, frozenset(WeightEncoding), manifests) or ()
        needed |= {(manifest.version, manifest.base_version) for manifest in way}
    return frozenset(needed)


def kept_versions(
    versions: Sequence[VersionRow], checkpoints: Collection[int], asked: Collection[int]
) -> frozenset[int]:
    """Versions that somebody may begin with: the latest two, the newest at or below each checkpoint's step, those asked for.

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
