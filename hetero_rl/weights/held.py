"""The raw bytes of one weight version in memory: what a delta is made against and applied to. Needs numba and torch.

    trainer: encode_delta(held, new state) ─► blobs to the hub ─► stored ─► held.apply_delta (checks the delta as well)
    worker:  blobs from the hub ─► held.apply_delta ─► held.tensors ─► engine

The trainer's copy moves only when the hub has stored the version; a publish that failed leaves it where it was. Bytes
that do not come out as the manifest says make a copy unusable: it says so ever after, and a full copy must replace it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hetero_rl.errors import DamagedError
from hetero_rl.failpoints import reach
from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.weights.arrival import BlobSource, FileSource, Verifier
from hetero_rl.weights.blobs import BLOB_BYTES, BlobFile, BlobWriter
from hetero_rl.weights.delta import Bits, Changes, DeltaCoder, bits_of, compare_bits
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.full import StagedVersion
from hetero_rl.weights.manifest import check_follows, check_manifest
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.weights.tensors import (
    NamedTensor,
    data_type_of,
    distinct_tensors,
    raw_bytes,
    tensor_from_bytes,
)
from hetero_rl.wire.messages import DataType, ProbeCard, TensorEntry, WeightEncoding, WeightManifest

__all__ = [
    "EncodedDelta",
    "HeldWeights",
    "TensorChange",
    "TensorTaker",
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


TensorTaker = Callable[[str, torch.Tensor], None]
"""Is given a tensor by its name, in the memory in which it is held."""


class DeltaLog(Protocol):
    """Is told what a delta overwrites."""

    def add(self, name: str, positions: NDArray[np.int64], old: Bits, elements: int) -> None:
        """A tensor of `elements` elements had these bits; it changes at these flat positions."""


class HeldWeights:
    """One version's raw bytes, in private memory over the files they came from."""

    def __init__(self, manifest: WeightManifest, data: Mapping[str, memoryview]) -> None:
        self._manifest: WeightManifest | None = manifest
        self._data = dict(data)

    @classmethod
    def from_staged(cls, staged: StagedVersion) -> Self:
        """Takes over a verified full copy; its files are read when touched and never written."""
        return cls(staged.manifest, {entry.name: data for entry, data in staged.raw()})

    @property
    def manifest(self) -> WeightManifest:
        """What is held; raises DamagedError after an apply that went wrong."""
        if self._manifest is None:
            raise DamagedError("the held weights were damaged by a delta that failed; load a full copy")
        return self._manifest

    @property
    def usable(self) -> bool:
        """Whether the bytes are those of a version; not after an apply that went wrong."""
        return self._manifest is not None

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor, in place."""
        return self._data[name]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors for `Engine.load_weights`, tied ones once, without a copy; not to be written to."""
        for entry in self.manifest.tensors:
            yield entry.name, tensor_from_bytes(entry, self._data[entry.name])

    def apply_delta(
        self, manifest: WeightManifest, paths: Sequence[Path], seconds: StageSeconds | None = None
    ) -> None:
        """Moves to the version of a fetched delta, exactly once.

        Args:
            manifest: Encoding ULP_DELTA, against the version held.
            paths: The file of each blob, in the manifest's order.
            seconds: Grows by the time of decoding and verifying.

        Raises:
            DamagedError: The delta does not follow what is held, or a blob is damaged: nothing was changed. Or a tensor
                does not have its digest afterwards: what is held is unusable from then on. Names the tensor or blob.
        """
        seconds = seconds or StageSeconds()
        with seconds.verifying():
            self._check_applies(manifest, len(paths))
            sources = list(map(FileSource, paths, manifest.blobs))
        self.apply_arriving(manifest, sources, seconds)

    def apply_arriving(
        self,
        manifest: WeightManifest,
        sources: Sequence[BlobSource],
        seconds: StageSeconds,
        verified: TensorTaker | None = None,
    ) -> None:
        """Moves to the version of a delta while its bytes arrive; each part of a tensor is decoded as soon as its own are there.

        Args:
            manifest: Encoding ULP_DELTA, against the version held.
            sources: Each blob, in the manifest's order.
            seconds: Grows by the time of decoding and verifying; not by that of waiting.
            verified: Called on another thread with each tensor that is right, in order, while others are still on their way;
                what is wrong with one of those shows later.

        Raises:
            DamagedError: The delta does not follow what is held: nothing was changed. Or a blob or a tensor does not have
                its digest: what is held is unusable from then on. Names the tensor or blob.
            HeteroRLError: What went wrong with the download. What is held is unusable if a tensor was changed by then.
        """
        self._check_applies(manifest, len(sources))
        held = self.manifest
        try:
            self._apply(manifest, sources, seconds, verified)
        except DamagedError:
            for source in sources:
                source.check()  # a blob that is wrong explains more than a tensor that is
            raise
        positions = {entry.name: entry for entry in held.tensors}
        self._manifest = dataclasses.replace(
            manifest,
            encoding=WeightEncoding.FULL_RAW,
            base_version=0,
            blobs=held.blobs,
            tensors=tuple(
                dataclasses.replace(positions[entry.name], digest=entry.digest) for entry in manifest.tensors
            ),
        )

    def _check_applies(self, manifest: WeightManifest, blobs: int) -> None:
        if manifest.encoding is not WeightEncoding.ULP_DELTA or blobs != len(manifest.blobs):
            raise DamagedError(
                f"version {manifest.version} is {manifest.encoding.name} with {len(manifest.blobs)} blobs; "
                f"{blobs} files of a delta were to be applied"
            )
        check_manifest(manifest)
        check_follows(manifest, self.manifest)

    def _apply(
        self,
        manifest: WeightManifest,
        sources: Sequence[BlobSource],
        seconds: StageSeconds,
        verified: TensorTaker | None,
    ) -> None:
        def describe(entry: TensorEntry, found: str) -> str:
            return (
                f"tensor {entry.name!r} has digest {found} after the delta to version {manifest.version}, "
                f"not {entry.digest}; load a full copy"
            )

        coder = DeltaCoder()
        with Verifier(describe, seconds, _entry_taker(verified)) as verifier:
            for entry in manifest.tensors:
                if not entry.size and entry.digest != entry.base_digest:
                    raise DamagedError(describe(entry, entry.base_digest))
                start = 0
                for stop in self._decoded(coder, manifest, entry, sources, seconds):
                    if entry.size:
                        verifier.add(entry, self._data[entry.name], start, stop)
                    start = stop
                if entry.size:
                    reach("delta.tensor_applied")
                else:
                    verifier.add_unchanged(entry, self._data[entry.name])
            verifier.finish()
        for source in sources:
            source.check()

    def _decoded(
        self,
        coder: DeltaCoder,
        manifest: WeightManifest,
        entry: TensorEntry,
        sources: Sequence[BlobSource],
        seconds: StageSeconds,
    ) -> Iterator[int]:
        """Changes a tensor while its bytes arrive, and says after each part how many of its bytes are new from the first on."""

        def read(start: int, size: int) -> memoryview:
            with seconds.waiting():
                coded = sources[entry.blob_index].read(entry.offset + start, size)
            self._manifest = None  # from here on it is neither version
            return coded

        bits = bits_of(entry.data_type, self._data[entry.name])
        parts = coder.decode_arriving(entry.data_type, bits, entry.size, read)
        while True:
            try:
                with seconds.decoding():
                    done = next(parts, None)
            except DamagedError as error:
                raise DamagedError(f"tensor {entry.name!r} of version {manifest.version}: {error}") from error
            if done is None:
                return
            yield done * entry.data_type.item_size


def _entry_taker(taker: TensorTaker | None) -> Callable[[TensorEntry, memoryview], None] | None:
    """Gives tensors to whoever takes them, if anybody does."""
    return taker and (lambda entry, data: taker(entry.name, tensor_from_bytes(entry, data)))


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
