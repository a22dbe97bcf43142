"""The raw bytes of one weight version in memory: what a delta is made against and applied to. Needs numba and torch.

    trainer: changes.encode_delta(held, new state) ─► blobs to the hub ─► stored ─► held.apply_delta (checks the delta, too)
    worker:  blobs from the hub ─► held.apply_delta ─► held.tensors ─► engine

The trainer's copy moves only when the hub has stored the version; a publish that failed leaves it where it was. Bytes
that do not come out as the manifest says make a copy unusable: it says so ever after, and a full copy must replace it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hetero_rl.errors import DamagedError
from hetero_rl.failpoints import reach
from hetero_rl.weights.arrival import BlobSource, FileSource, Verifier
from hetero_rl.weights.delta import DeltaCoder, bits_of
from hetero_rl.weights.full import StagedVersion
from hetero_rl.weights.learned import Bits
from hetero_rl.weights.manifest import check_follows, check_manifest
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.weights.tensors import (
    tensor_from_bytes,
)
from hetero_rl.wire.messages import TensorEntry, WeightEncoding, WeightManifest

__all__ = ["DeltaLog", "HeldWeights", "TensorTaker"]


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
        with seconds.decoding():  # a small tensor is read at once
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
