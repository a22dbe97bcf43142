"""How the next weight version is coded: as a delta against the last version that the hub has stored, or in full.

    encode(snapshot) ── no baseline, anchor due, or no gain ──► full copy (an anchor)
          └── else ──► delta against the baseline
    stored(version) ──► the baseline moves; never before the hub has the version

A full copy comes first, after a resume, every `weights.anchor_every` versions and whenever a delta would not be smaller.
Without numba (the extra `codec`) every version is a full copy. For one thread.
"""

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_rl.errors import DamagedError
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.full import EncodedVersion, encode_full, stage_full
from hetero_rl.weights.manifest import raw_size
from hetero_rl.wire.messages import DataType, ProbeCard, WeightEncoding

if TYPE_CHECKING:
    from hetero_rl.weights.held import HeldWeights

__all__ = ["Baseline", "encode_anchor"]

_LOG = logging.getLogger(__name__)


class Baseline:
    """The bytes of the last stored version, and the codings of the versions after it.

    Args:
        anchor_every: Versions from one full copy to the next; 1 makes every version a full copy.
    """

    def __init__(self, anchor_every: int) -> None:
        self._anchor_every = anchor_every
        self._deltas_wanted = anchor_every > 1 and WeightEncoding.ULP_DELTA in supported_encodings()
        self._held: HeldWeights | None = None
        self._deltas = 0
        """Deltas since the last full copy."""
        self._full_copies_left = 0
        """Versions that are not tried as deltas, because the hub refused one."""

    @property
    def version(self) -> int:
        """The version that a delta would be against; 0 when the next one is a full copy for want of a baseline."""
        return self._held.manifest.version if self._held is not None else 0

    def encode(
        self, snapshot: Snapshot, directory: Path, *, version: int, card: ProbeCard | None
    ) -> EncodedVersion:
        """Codes a snapshot in the way that is due; the baseline stays where it is."""
        held = self._held
        if held is not None and self._deltas + 1 < self._anchor_every and not self._full_copies_left:
            try:
                encoded = _encode_delta(held, snapshot, directory, version, card)
            except DamagedError as error:
                _LOG.warning("weight version %d is a full copy: %s", version, error)
            else:
                if _coded_size(encoded) < sum(map(raw_size, encoded.manifest.tensors)):
                    return encoded
        return encode_anchor(snapshot, directory, version=version, card=card)

    def prepare(self, data_type: DataType) -> None:
        """Compiles the codec for a serving type, which takes seconds the first time in an installation."""
        if not self._deltas_wanted:
            return
        from hetero_rl.weights.delta import DeltaCoder, bits_of, compare_bits

        old, new = (bits_of(data_type, memoryview(bytearray(1024 * data_type.item_size))) for _ in range(2))
        new[0] = 1
        coded = DeltaCoder().encode(data_type, old, compare_bits(old, new))
        DeltaCoder().decode(data_type, old, memoryview(coded))

    def refused(self) -> None:
        """Notes that the hub refused a delta: the next versions are full copies until an anchor would be due anyway."""
        self._full_copies_left = self._anchor_every

    def stored(self, encoded: EncodedVersion) -> None:
        """Moves to a version that the hub has stored; decodes it as workers do.

        Raises:
            DamagedError: The version does not decode to what its manifest says. The next one is a full copy.
        """
        held, self._held = self._held, None  # what goes wrong below leaves no baseline
        paths = [blob.path for blob in encoded.blobs]
        if encoded.manifest.encoding is WeightEncoding.ULP_DELTA and held is not None:
            held.apply_delta(encoded.manifest, paths)
            self._deltas += 1
            self._held = held
            return
        self._deltas = 0
        self._full_copies_left = max(0, self._full_copies_left - 1)
        if self._deltas_wanted:
            from hetero_rl.weights.held import HeldWeights

            self._held = HeldWeights.from_staged(stage_full(encoded.manifest, paths))


def encode_anchor(
    snapshot: Snapshot, directory: Path, *, version: int, card: ProbeCard | None
) -> EncodedVersion:
    """Codes a snapshot as a full copy."""
    return encode_full(snapshot.tensors, directory, version=version, step=snapshot.step, probe_card=card)


def _encode_delta(
    held: "HeldWeights", snapshot: Snapshot, directory: Path, version: int, card: ProbeCard | None
) -> EncodedVersion:
    from hetero_rl.weights.held import encode_delta

    delta = encode_delta(
        held, snapshot.tensors, directory, version=version, step=snapshot.step, probe_card=card
    )
    tensors = tuple(
        dataclasses.replace(entry, changed_elements=delta.changed[entry.name])
        for entry in delta.manifest.tensors
    )
    return EncodedVersion(dataclasses.replace(delta.manifest, tensors=tensors), delta.blobs)


def _coded_size(encoded: EncodedVersion) -> int:
    return sum(blob.reference.size for blob in encoded.blobs)
