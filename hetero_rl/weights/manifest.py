"""Rules that every weight manifest keeps, whoever sent it. Standard library only: the hub checks with these too."""

import math
from collections.abc import Iterable

from hetero_rl.errors import DamagedError
from hetero_rl.weights.adapter_rules import check_adapters, check_same_adapters
from hetero_rl.weights.digests import is_digest, state_digest
from hetero_rl.wire.messages import BlobReference, TensorEntry, WeightEncoding, WeightManifest

__all__ = ["check_follows", "check_manifest", "element_count", "raw_size"]

MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**40
"""Bounds on a tensor's shape: sizes computed from it stay far from overflow and absurd allocations."""


def element_count(entry: TensorEntry) -> int:
    """Number of elements of a tensor; 1 for a scalar."""
    return math.prod(entry.shape)


def raw_size(entry: TensorEntry) -> int:
    """Bytes of a tensor's elements, not coded."""
    return element_count(entry) * entry.data_type.item_size


def check_manifest(manifest: WeightManifest) -> None:
    """Raises DamagedError when a manifest contradicts itself; reads no blob.

    Checked: version numbers, digests are digests, names are unique (tied names included), shapes are bounded, every
    tensor lies inside its blob, a raw full copy has exactly the bytes of its shape, a delta names every base digest,
    the state digest is that of the tensors, and adapters are what the manifest says of them.
    """
    _check_versions(manifest)
    _check_names(manifest.tensors)
    for blob in manifest.blobs:
        if not is_digest(blob.digest) or blob.size < 0:
            raise DamagedError(f"manifest {manifest.version}: {blob} is not a blob reference")
    for entry in manifest.tensors:
        _check_tensor(entry, manifest.encoding, manifest.blobs)
    expected = state_digest(manifest.tensors)
    if manifest.state_digest != expected:
        raise DamagedError(
            f"manifest {manifest.version}: state digest {manifest.state_digest} is not that of its tensors, {expected}"
        )
    check_adapters(manifest)


def check_follows(manifest: WeightManifest, base: WeightManifest) -> None:
    """Raises DamagedError unless a delta manifest applies to exactly the state that `base` describes.

    A tensor that is missing, new, renamed, reshaped, of another type or of other bytes is named.
    """
    if manifest.base_version != base.version:
        raise DamagedError(
            f"the delta to version {manifest.version} is against version {manifest.base_version}, "
            f"not against the held version {base.version}"
        )
    check_same_adapters(manifest, base)
    held = {entry.name: entry for entry in base.tensors}
    sent = {entry.name for entry in manifest.tensors}
    if missing := sorted(held.keys() - sent):
        raise DamagedError(f"the delta to version {manifest.version} lacks tensor {missing[0]!r}")
    for entry in manifest.tensors:
        if entry.name not in held:
            raise DamagedError(
                f"tensor {entry.name!r} of the delta to version {manifest.version} is not in version {base.version}"
            )
        _check_same_tensor(entry, held[entry.name])


def _check_versions(manifest: WeightManifest) -> None:
    delta = manifest.encoding is WeightEncoding.ULP_DELTA
    if manifest.version < 1 or manifest.step < 0:
        raise DamagedError(f"manifest has version {manifest.version} and step {manifest.step}")
    if delta and not 1 <= manifest.base_version < manifest.version:
        raise DamagedError(
            f"the delta to version {manifest.version} names base version {manifest.base_version}, "
            "which is not an earlier one"
        )
    if not delta and manifest.base_version != 0:
        raise DamagedError(f"the full copy {manifest.version} names a base version, {manifest.base_version}")


def _check_names(tensors: Iterable[TensorEntry]) -> None:
    seen: set[str] = set()
    for entry in tensors:
        for name in (entry.name, *entry.tied_names):
            if not name or name in seen:
                raise DamagedError(f"tensor name {name!r} is empty or occurs twice in a manifest")
            seen.add(name)


def _check_tensor(entry: TensorEntry, encoding: WeightEncoding, blobs: tuple[BlobReference, ...]) -> None:
    small = len(entry.shape) <= MAX_DIMENSIONS and all(0 <= size <= MAX_ELEMENTS for size in entry.shape)
    if not small or element_count(entry) > MAX_ELEMENTS:
        raise DamagedError(f"tensor {entry.name!r} has shape {entry.shape}, which is out of bounds")
    delta = encoding is WeightEncoding.ULP_DELTA
    if not is_digest(entry.digest) or (
        is_digest(entry.base_digest) if not delta else not is_digest(entry.base_digest)
    ):
        raise DamagedError(f"tensor {entry.name!r} lacks a digest, or names a base digest in a full copy")
    if entry.size < 0 or entry.offset < 0 or entry.blob_index < 0:
        raise DamagedError(f"tensor {entry.name!r} has a negative position")
    if entry.size and (
        entry.blob_index >= len(blobs) or entry.offset + entry.size > blobs[entry.blob_index].size
    ):
        raise DamagedError(f"tensor {entry.name!r} lies outside its blob {entry.blob_index}")
    if entry.changed_elements is not None and not (
        delta and 0 <= entry.changed_elements <= element_count(entry)
    ):
        raise DamagedError(
            f"tensor {entry.name!r} of shape {entry.shape} counts {entry.changed_elements} changed elements"
        )
    if encoding is WeightEncoding.FULL_RAW and entry.size != raw_size(entry):
        raise DamagedError(
            f"tensor {entry.name!r} of shape {entry.shape} has {entry.size} bytes, not {raw_size(entry)}"
        )


def _check_same_tensor(entry: TensorEntry, held: TensorEntry) -> None:
    if (entry.shape, entry.data_type) != (held.shape, held.data_type):
        raise DamagedError(
            f"tensor {entry.name!r} is {entry.data_type.name}{list(entry.shape)} in the delta, "
            f"{held.data_type.name}{list(held.shape)} in the held version"
        )
    if entry.tied_names != held.tied_names:
        raise DamagedError(
            f"tensor {entry.name!r} is tied to {entry.tied_names} in the delta, to {held.tied_names} in the held version"
        )
    if entry.base_digest != held.digest:
        raise DamagedError(
            f"tensor {entry.name!r} of the held version has digest {held.digest}, the delta is against {entry.base_digest}"
        )
