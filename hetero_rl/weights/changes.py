"""What has changed since a held version, written as the delta of the next one. Needs numba and torch.

new state ─► compared, tensor by tensor where it is ─► changes ─► coded by `delta` ─► blob files and a manifest
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from hetero_rl.errors import DamagedError
from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.weights.blobs import BLOB_BYTES, BlobFile, BlobWriter
from hetero_rl.weights.delta import Changes, DeltaCoder, bits_of, compare_bits
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.held import DeltaLog, HeldWeights
from hetero_rl.weights.manifest import check_follows, check_manifest
from hetero_rl.weights.tensors import NamedTensor, data_type_of, distinct_tensors, raw_bytes
from hetero_rl.wire.messages import DataType, ProbeCard, TensorEntry, WeightEncoding, WeightManifest

__all__ = [
    "DeltaBase",
    "EncodedDelta",
    "TensorChange",
    "compared",
    "encode_changes",
    "encode_delta",
    "merge_deltas",
    "served_tensor",
]


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedDelta:
    """A delta's manifest, its blobs as local files, and how many elements of each tensor changed."""

    manifest: WeightManifest
    blobs: tuple[BlobFile, ...]
    changed: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorChange:
    """What changed in one tensor; the entry has the digest before, and no place in a blob yet."""

    entry: TensorEntry
    changes: Changes


class DeltaBase(Protocol):
    """The version that a delta is made against."""

    @property
    def manifest(self) -> WeightManifest:
        """What it is."""

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor."""


def encode_delta(
    held: HeldWeights,
    state: Mapping[str, torch.Tensor],
    directory: Path,
    *,
    version: int,
    step: int,
    serving_dtype: torch.dtype | None = None,
    probe_card: ProbeCard | None = None,
    blob_bytes: int = BLOB_BYTES,
    log: DeltaLog | None = None,
) -> EncodedDelta:
    """Writes what changed since the held version into blob files; extra memory is about two tensors.

    Tensors are compared bit by bit on the device where they are; only what changed comes to the host.

    Args:
        held: The last version that the hub has stored. Not changed: call `apply_delta` when this one is stored.
        state: Tensors by checkpoint name, as for `encode_full`.
        directory: Where the blob files are put, named by digest.
        version: Number of the weight version, above the held one.
        step: Optimizer steps applied to the state.
        serving_dtype: Type of floating point tensors as served; None keeps each one's own.
        probe_card: Goes into the manifest.
        blob_bytes: A blob is closed before it would grow beyond this.
        log: Is told what each tensor had where it changed.

    Raises:
        DamagedError: The state has other tensors, shapes, types or ties than what is held; names the tensor.
    """
    served = (
        NamedTensor(named.name, served_tensor(named.tensor, serving_dtype), named.tied_names)
        for named in distinct_tensors(state)
    )
    return encode_changes(
        held,
        compared(held, served),
        directory,
        version=version,
        step=step,
        probe_card=probe_card,
        blob_bytes=blob_bytes,
        log=log,
    )


def merge_deltas(
    base: DeltaBase, newest: HeldWeights, directory: Path, *, blob_bytes: int = BLOB_BYTES
) -> EncodedDelta:
    """One delta over several versions, for a receiver that holds an old one: smaller than the sum of the deltas.

    Args:
        base: The old version.
        newest: The version that the delta leads to.
        directory: Where the blob files are put, named by digest.
        blob_bytes: A blob is closed before it would grow beyond this.
    """
    manifest = newest.manifest
    ties = {entry.name: entry.tied_names for entry in manifest.tensors}
    named = (NamedTensor(name, tensor, ties[name]) for name, tensor in newest.tensors())
    return encode_changes(
        base,
        compared(base, named),
        directory,
        version=manifest.version,
        step=manifest.step,
        probe_card=manifest.probe_card,
        blob_bytes=blob_bytes,
    )


def compared(base: DeltaBase, tensors: Iterable[NamedTensor]) -> Iterator[TensorChange]:
    """What changed in each tensor since a version, one tensor at a time.

    Tensors are compared bit by bit on the device where they are; only what changed comes to the host.

    Raises:
        DamagedError: A tensor has another name, shape, type or ties than the version's; names it.
    """
    before = {entry.name: entry for entry in base.manifest.tensors}
    for named in tensors:
        found = before.get(named.name)
        entry = _described(named, found.digest if found else "")
        if found is None or (found.shape, found.data_type, found.tied_names) != (
            entry.shape, entry.data_type, entry.tied_names
        ):  # fmt: skip
            raise DamagedError(
                f"tensor {named.name!r} is {entry.data_type.name}{list(entry.shape)}, tied to {entry.tied_names}, "
                f"but version {base.manifest.version} holds {found}; publish a full copy"
            )
        old = bits_of(entry.data_type, base.raw(named.name))
        if base.manifest.adapter is not None and not is_adapter_name(named.name):
            yield TensorChange(
                entry, Changes(np.empty(0, np.int64), old[:0])
            )  # the base of adapters is frozen
            continue
        yield TensorChange(entry, _compare(old, named.tensor, entry.data_type))


def encode_changes(
    base: DeltaBase,
    changes: Iterable[TensorChange],
    directory: Path,
    *,
    version: int,
    step: int,
    probe_card: ProbeCard | None = None,
    blob_bytes: int = BLOB_BYTES,
    log: DeltaLog | None = None,
) -> EncodedDelta:
    """Writes changes into blob files; arguments as for `encode_delta`.

    Raises:
        DamagedError: The changes do not name every tensor of the base.
    """
    coder, entries, changed = DeltaCoder(), [], {}
    with BlobWriter(directory, blob_bytes) as writer:
        for change in changes:
            entry = change.entry
            old = bits_of(entry.data_type, base.raw(entry.name))
            if log is not None:
                log.add(entry.name, change.changes.positions, old, old.size)
            placement = writer.add(coder.encode(entry.data_type, old, change.changes))
            changed[entry.name] = change.changes.positions.size
            entries.append(
                dataclasses.replace(
                    entry,
                    digest=_digest_after(old, change.changes, entry.digest),
                    blob_index=placement.blob_index,
                    offset=placement.offset,
                    size=placement.size,
                )
            )
    manifest = WeightManifest(
        version=version,
        step=step,
        encoding=WeightEncoding.ULP_DELTA,
        base_version=base.manifest.version,
        tensors=tuple(entries),
        blobs=tuple(blob.reference for blob in writer.blobs),
        state_digest=state_digest(entries),
        probe_card=probe_card,
        adapter=base.manifest.adapter,
    )
    check_manifest(manifest)
    check_follows(manifest, base.manifest)
    return EncodedDelta(manifest, writer.blobs, changed)


def _described(named: NamedTensor, base_digest: str) -> TensorEntry:
    return TensorEntry(
        name=named.name,
        data_type=data_type_of(named.name, named.tensor),
        shape=tuple(named.tensor.shape),
        digest=base_digest,
        base_digest=base_digest,
        blob_index=0,
        offset=0,
        size=0,
        tied_names=named.tied_names,
    )


def served_tensor(tensor: torch.Tensor, serving_dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor in the dtype it is served in, contiguous, on its own device."""
    floating = tensor.is_floating_point() and serving_dtype is not None
    return tensor.detach().to(serving_dtype if floating else tensor.dtype).contiguous()


def _compare(old: np.ndarray, new: torch.Tensor, data_type: DataType) -> Changes:
    """Where a tensor differs from old bits; off the CPU, the old bits visit the tensor's device."""
    if new.device.type == "cpu":
        return compare_bits(old, bits_of(data_type, raw_bytes(new)))
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[data_type.item_size]
    there = new.reshape(-1).view(signed)
    before = torch.from_numpy(old.view(f"<i{data_type.item_size}") if data_type.item_size > 1 else old)
    positions = (before.to(new.device) != there).nonzero().reshape(-1)
    bits = there[positions].cpu().numpy().view(old.dtype)
    return Changes(positions.cpu().numpy(), bits)


def _digest_after(old: np.ndarray, changes: Changes, digest_before: str) -> str:
    if not changes.positions.size:
        return digest_before
    new = old.copy()
    new[changes.positions] = changes.bits
    return digest_of_bytes(new.data)
