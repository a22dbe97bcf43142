"""Full copies of the weights: coded into blobs tensor by tensor, staged and verified on the other side. Needs torch.

trainer: state ─► serving dtype ─► digest ─► blobs on disk ─► TrainingPort.put_blob, publish_version
worker:  WeightPort.fetch_blob ─► files ─► stage_full (every digest checked) ─► StagedVersion.tensors ─► engine
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from hetero_rl.errors import DamagedError
from hetero_rl.weights.adapter_rules import base_digest, is_adapter_name
from hetero_rl.weights.blobs import BLOB_BYTES, BlobFile, BlobWriter
from hetero_rl.weights.digests import check_blob_file, digest_of_bytes, state_digest
from hetero_rl.weights.manifest import check_manifest, raw_size
from hetero_rl.weights.planes import decode_planes, encode_planes
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.weights.tensors import (
    NamedTensor,
    data_type_of,
    distinct_tensors,
    map_file,
    raw_bytes,
    serving_copy,
    tensor_from_bytes,
)
from hetero_rl.wire.messages import (
    AdapterDescription,
    ProbeCard,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
)

__all__ = [
    "EncodedVersion",
    "StagedVersion",
    "encode_full",
    "encode_full_tensors",
    "stage_full",
    "unpack_full",
]


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedVersion:
    """A manifest and its blobs as local files, in the manifest's order."""

    manifest: WeightManifest
    blobs: tuple[BlobFile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StagedVersion:
    """A verified version whose raw bytes lie in local files, ready to be loaded."""

    manifest: WeightManifest
    """Describes the raw bytes: encoding FULL_RAW, blob i in file i."""
    paths: tuple[Path, ...]

    def raw(self) -> Iterator[tuple[TensorEntry, memoryview]]:
        """Each tensor's entry and bytes, in the order of the checkpoint."""
        maps: dict[int, memoryview] = {}
        for entry in self.manifest.tensors:
            if entry.size and entry.blob_index not in maps:
                maps = {entry.blob_index: map_file(self.paths[entry.blob_index])}
            data = maps[entry.blob_index] if entry.size else memoryview(bytearray())
            yield entry, data[entry.offset : entry.offset + entry.size]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors for `Engine.load_weights`, tied ones once; pages are read from disk when touched."""
        for entry, data in self.raw():
            yield entry.name, tensor_from_bytes(entry, data)


def encode_full(
    state: Mapping[str, torch.Tensor],
    directory: Path,
    *,
    version: int,
    step: int,
    serving_dtype: torch.dtype | None = None,
    probe_card: ProbeCard | None = None,
    blob_bytes: int = BLOB_BYTES,
    encoding: WeightEncoding = WeightEncoding.FULL_RAW,
    adapter: AdapterDescription | None = None,
) -> EncodedVersion:
    """Writes a full copy of a state into blob files; extra memory is about one tensor.

    Args:
        state: Tensors by checkpoint name, in the order of the checkpoint, on any device. Tensors that share storage
            are written once.
        directory: Where the blob files are put, named by digest.
        version: Number of the weight version.
        step: Optimizer steps applied to the state.
        serving_dtype: Type of floating point tensors as served; None keeps each one's own.
        probe_card: Goes into the manifest.
        blob_bytes: A blob is closed before it would grow beyond this.
        encoding: FULL_RAW or FULL_PLANES.
        adapter: Of the adapters among the tensors; its base digest is computed here. Tensors of adapters come last, and in
            blobs of their own: those of the base are the same in every version.

    A tensor of a type that cannot be published raises ConfigError naming it.
    """
    return encode_full_tensors(
        distinct_tensors(state),
        directory,
        version=version,
        step=step,
        serving_dtype=serving_dtype,
        probe_card=probe_card,
        blob_bytes=blob_bytes,
        encoding=encoding,
        adapter=adapter,
    )


def encode_full_tensors(
    tensors: Iterable[NamedTensor],
    directory: Path,
    *,
    version: int,
    step: int,
    serving_dtype: torch.dtype | None = None,
    probe_card: ProbeCard | None = None,
    blob_bytes: int = BLOB_BYTES,
    encoding: WeightEncoding = WeightEncoding.FULL_RAW,
    adapter: AdapterDescription | None = None,
) -> EncodedVersion:
    """`encode_full` of distinct tensors that need not be alive at once."""
    entries: list[TensorEntry] = []
    with BlobWriter(directory, blob_bytes) as writer:
        for named in tensors:
            tensor = serving_copy(named.tensor, serving_dtype)
            data = raw_bytes(tensor)
            data_type = data_type_of(named.name, tensor)
            planes = encoding is WeightEncoding.FULL_PLANES
            if is_adapter_name(named.name) and entries and not is_adapter_name(entries[-1].name):
                writer.cut()
            placement = writer.add(encode_planes(data_type, data) if planes else data)
            entries.append(
                TensorEntry(
                    name=named.name,
                    data_type=data_type,
                    shape=tuple(tensor.shape),
                    digest=digest_of_bytes(data),
                    blob_index=placement.blob_index,
                    offset=placement.offset,
                    size=placement.size,
                    tied_names=named.tied_names,
                )
            )
    manifest = WeightManifest(
        version=version,
        step=step,
        encoding=encoding,
        tensors=tuple(entries),
        blobs=tuple(blob.reference for blob in writer.blobs),
        state_digest=state_digest(entries),
        probe_card=probe_card,
        adapter=adapter and dataclasses.replace(adapter, base_digest=base_digest(entries)),
    )
    return EncodedVersion(manifest, writer.blobs)


def stage_full(
    manifest: WeightManifest, paths: Sequence[Path], seconds: StageSeconds | None = None
) -> StagedVersion:
    """Checks a fetched raw full copy, every blob and every tensor, and gives it back ready to be loaded.

    Args:
        manifest: Encoding FULL_RAW.
        paths: The file of each blob, in the manifest's order.
        seconds: Grows by the time of verifying.

    Raises:
        DamagedError: The manifest contradicts itself or bytes do not match their digest; names the blob or tensor.
    """
    staged = StagedVersion(manifest, tuple(paths))
    with (seconds or StageSeconds()).verifying():
        _check_fetched(manifest, paths, WeightEncoding.FULL_RAW)
        for entry, data in staged.raw():
            _check_digest(manifest, entry, data)
    return staged


def unpack_full(manifest: WeightManifest, paths: Sequence[Path], directory: Path) -> StagedVersion:
    """Checks a fetched full copy in byte planes and writes it out as raw files, ready to be loaded.

    Args:
        manifest: Encoding FULL_PLANES.
        paths: The file of each blob, in the manifest's order.
        directory: Where the raw files are put, named by digest.

    Raises:
        DamagedError: The manifest contradicts itself or bytes do not match their digest; names the blob or tensor.
    """
    _check_fetched(manifest, paths, WeightEncoding.FULL_PLANES)
    entries = []
    with BlobWriter(directory) as writer:
        for entry, coded in StagedVersion(manifest, tuple(paths)).raw():
            try:
                data = decode_planes(entry.data_type, coded, raw_size(entry))
            except DamagedError as error:
                raise DamagedError(f"tensor {entry.name!r} of version {manifest.version}: {error}") from error
            _check_digest(manifest, entry, data)
            placement = writer.add(data)
            entries.append(
                dataclasses.replace(
                    entry, blob_index=placement.blob_index, offset=placement.offset, size=placement.size
                )
            )
    raw = dataclasses.replace(
        manifest,
        encoding=WeightEncoding.FULL_RAW,
        tensors=tuple(entries),
        blobs=tuple(blob.reference for blob in writer.blobs),
    )
    return StagedVersion(raw, tuple(blob.path for blob in writer.blobs))


def _check_fetched(manifest: WeightManifest, paths: Sequence[Path], encoding: WeightEncoding) -> None:
    if manifest.encoding is not encoding or len(paths) != len(manifest.blobs):
        raise DamagedError(
            f"version {manifest.version} is {manifest.encoding.name} with {len(manifest.blobs)} blobs; "
            f"{len(paths)} files of {encoding.name} were to be staged"
        )
    check_manifest(manifest)
    for blob, path in zip(manifest.blobs, paths, strict=True):
        check_blob_file(path, blob)


def _check_digest(manifest: WeightManifest, entry: TensorEntry, data: memoryview) -> None:
    found = digest_of_bytes(data)
    if found != entry.digest:
        raise DamagedError(
            f"tensor {entry.name!r} of version {manifest.version} has digest {found}, not {entry.digest}"
        )
