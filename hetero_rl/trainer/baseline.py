"""How the next weight version is coded: as a delta against the last version that the hub has stored, or in full.

    encode(snapshot) ── no baseline, or no gain ──► full copy (an anchor)
          └── else ──► delta against the baseline; what it overwrites goes into a log
    stored(version) ──► the baseline moves; never before the hub has the version
    anchor(), merged(base) ──► other ways to the version stored last: a full copy when one is due, a delta over several

A full copy comes first, after a resume and whenever a delta would not be smaller. Every `weights.anchor_every` versions
one is due besides the delta, for late joiners; at a hub that takes no other ways it replaces the delta. Without numba (the
extra `codec`) every version is a full copy. For one thread.
"""

import dataclasses
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_rl.errors import DamagedError
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.full import EncodedVersion, encode_full, encode_full_tensors, stage_full
from hetero_rl.weights.manifest import raw_size
from hetero_rl.weights.tensors import distinct_tensors
from hetero_rl.wire.messages import DataType, ProbeCard, WeightEncoding, WeightManifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from hetero_rl.weights.changes import TensorChange
    from hetero_rl.weights.held import HeldWeights
    from hetero_rl.weights.rewind import ChangeLog
    from hetero_rl.weights.sparsity import Coding

__all__ = ["Baseline", "encode_anchor"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Delta:
    """A delta of the chain that leads to the baseline."""

    version: int
    size: int
    log: "ChangeLog"


class Baseline:
    """The bytes of the last stored version, and the codings of the versions after it.

    Args:
        anchor_every: Versions from one full copy to the next; 1 makes every version a full copy.
        directory: Where the logs of overwritten values are kept.
        sparsity: Where counts of what changed are written, RUN/weights.jsonl; None writes none.
        anchor_encoding: Coding of the full copies that follow a delta, FULL_RAW or FULL_PLANES.
    """

    def __init__(
        self,
        anchor_every: int,
        directory: Path,
        sparsity: Path | None = None,
        anchor_encoding: WeightEncoding = WeightEncoding.FULL_RAW,
    ) -> None:
        self._anchor_every = anchor_every
        self._anchor_encoding = anchor_encoding
        self._directory = directory
        self._sparsity = sparsity
        self._deltas_wanted = anchor_every > 1 and WeightEncoding.ULP_DELTA in supported_encodings()
        self._held: HeldWeights | None = None
        self._pending: ChangeLog | None = None
        self._coding: Coding | None = None
        """What the pending delta took to code; known when it is to be recorded."""
        self._chain: list[_Delta] = []
        """The deltas that led to the baseline, oldest first."""
        self._since_anchor = 0
        """Deltas since the last full copy."""
        self._full_copies_left = 0
        """Versions that are not tried as deltas, because the hub refused one."""
        self._takes_routes = True
        """Whether the hub takes other ways to a version besides the published one."""

    @property
    def version(self) -> int:
        """The version that a delta would be against; 0 when the next one is a full copy for want of a baseline."""
        return self._held.manifest.version if self._held is not None else 0

    @property
    def anchor_due(self) -> bool:
        """Whether the version stored last should get a full copy besides its delta."""
        due = self._since_anchor >= self._anchor_every
        return self._takes_routes and self._held is not None and due

    def encode(
        self, snapshot: Snapshot, directory: Path, *, version: int, card: ProbeCard | None
    ) -> EncodedVersion:
        """Codes a snapshot in the way that is due; the baseline stays where it is."""
        held = self._held
        if held is not None and not self._full_copy_due:
            try:
                encoded = self._encode_delta(held, snapshot, directory, version, card)
            except DamagedError as error:
                _LOG.warning("weight version %d is a full copy: %s", version, error)
            else:
                if _coded_size(encoded) < sum(map(raw_size, encoded.manifest.tensors)):
                    return encoded
        return encode_anchor(snapshot, directory, version=version, card=card)

    def difference(
        self, state: "Mapping[str, torch.Tensor]", step: int, serving_dtype: "torch.dtype"
    ) -> Snapshot | None:
        """The policy after a step as what changed since the version stored last; None when a full copy is due.

        Takes one tensor of extra memory and what changed. To be coded before `stored` is called again.
        """
        if self._held is None or self._full_copy_due:
            return None
        from hetero_rl.weights.difference import Difference

        try:
            found = Difference.of(self._held, state, serving_dtype)
        except DamagedError as error:
            _LOG.warning("the weights of step %d are a full copy: %s", step, error)
            return None
        return Snapshot(step, found, found)

    @property
    def _full_copy_due(self) -> bool:
        in_place = not self._takes_routes and self._since_anchor + 1 >= self._anchor_every
        return in_place or bool(self._full_copies_left)

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

    def routes_refused(self) -> None:
        """Notes that the hub takes no other ways to a version: full copies are published in place of deltas."""
        self._takes_routes = False

    def stored(self, encoded: EncodedVersion) -> None:
        """Moves to a version that the hub has stored; decodes it as workers do.

        Raises:
            DamagedError: The version does not decode to what its manifest says. The next one is a full copy.
        """
        held, self._held = self._held, None  # what goes wrong below leaves no baseline
        log, self._pending = self._pending, None
        paths = [blob.path for blob in encoded.blobs]
        if encoded.manifest.encoding is WeightEncoding.ULP_DELTA and held is not None and log is not None:
            held.apply_delta(encoded.manifest, paths)
            self._since_anchor += 1
            self._record(encoded.manifest, log)
            self._chain.append(_Delta(encoded.manifest.version, _coded_size(encoded), log))
            self._forget_logs(len(self._chain) - self._anchor_every)
            self._held = held
            return
        self._since_anchor = 0
        self._forget_logs(len(self._chain))
        self._full_copies_left = max(0, self._full_copies_left - 1)
        if self._deltas_wanted:
            from hetero_rl.weights.held import HeldWeights

            self._held = HeldWeights.from_staged(stage_full(encoded.manifest, paths))

    def anchor(self, directory: Path) -> EncodedVersion | None:
        """A full copy of the version stored last; none is due for a while then. None without a baseline."""
        held = self._held
        if held is None:
            return None
        manifest = held.manifest
        self._since_anchor = 0
        return encode_full(
            _state_of(held),
            directory,
            version=manifest.version,
            step=manifest.step,
            probe_card=manifest.probe_card,
            encoding=self._anchor_encoding,
            adapter=manifest.adapter,
        )

    def merged(self, base_version: int, directory: Path) -> EncodedVersion | None:
        """One delta from an earlier version to the one stored last.

        None when that version is too long ago or the deltas between take no more bytes.

        Raises:
            DamagedError: The earlier version cannot be had from the logs any more.
        """
        starts = [index for index, delta in enumerate(self._chain) if delta.log.base.version == base_version]
        if self._held is None or not starts:
            return None
        from hetero_rl.weights.changes import merge_deltas
        from hetero_rl.weights.rewind import Rewound

        chain = self._chain[starts[0] :]
        merged = merge_deltas(Rewound(self._held, [delta.log for delta in chain]), self._held, directory)
        encoded = EncodedVersion(merged.manifest, merged.blobs)
        return encoded if _coded_size(encoded) < sum(delta.size for delta in chain) else None

    def _encode_delta(
        self,
        held: "HeldWeights",
        snapshot: Snapshot,
        directory: Path,
        version: int,
        card: ProbeCard | None,
    ) -> EncodedVersion:
        from hetero_rl.weights.changes import encode_changes
        from hetero_rl.weights.difference import Difference
        from hetero_rl.weights.rewind import ChangeLog

        self._directory.mkdir(parents=True, exist_ok=True)
        self._pending = ChangeLog(held.manifest, self._directory / f"before-{version}")
        difference = snapshot.difference or Difference.of(held, snapshot.tensors, None)
        started = time.perf_counter()
        delta = encode_changes(
            held,
            difference.changes,
            directory,
            version=version,
            step=snapshot.step,
            probe_card=card,
            log=self._pending,
        )
        if self._sparsity is not None:
            seconds = time.perf_counter() - started
            self._coding = _coding(held, difference.changes, seconds)
        tensors = tuple(
            dataclasses.replace(entry, changed_elements=delta.changed[entry.name])
            for entry in delta.manifest.tensors
        )
        return EncodedVersion(dataclasses.replace(delta.manifest, tensors=tensors), delta.blobs)

    def _record(self, manifest: WeightManifest, log: "ChangeLog") -> None:
        """Writes down where a delta changed something, in counts; a disk without room costs the record, not the run."""
        if self._sparsity is None:
            return
        from hetero_rl.weights.sparsity import append_line, sparsity_line

        before = self._chain[-1].log if self._chain else None
        coding, self._coding = self._coding, None
        try:
            append_line(self._sparsity, sparsity_line(manifest, log, before, coding))
        except OSError as error:
            _LOG.warning("the sparsity of version %d is not recorded: %s", manifest.version, error)

    def _forget_logs(self, count: int) -> None:
        """Lets go of the oldest deltas of the chain."""
        gone = self._chain[: max(0, count)]
        del self._chain[: len(gone)]
        for delta in gone:
            delta.log.remove()


def _state_of(held: "HeldWeights") -> "dict[str, torch.Tensor]":
    """The held tensors by checkpoint name, tied names too."""
    ties = {entry.name: entry.tied_names for entry in held.manifest.tensors}
    return {alias: tensor for name, tensor in held.tensors() for alias in (name, *ties[name])}


def _coding(held: "HeldWeights", changes: "Sequence[TensorChange]", seconds: float) -> "Coding":
    """What a delta took to code, beside what it could have taken."""
    from hetero_rl.weights.delta import bits_of
    from hetero_rl.weights.floors import FloorTally
    from hetero_rl.weights.sparsity import Coding

    tally = FloorTally()
    for change in changes:
        data_type = change.entry.data_type
        tally.add(data_type, bits_of(data_type, held.raw(change.entry.name)), change.changes)
    return Coding(seconds, tally.bytes_given_nothing(), tally.bytes_given_exponents())


def encode_anchor(
    snapshot: Snapshot, directory: Path, *, version: int, card: ProbeCard | None
) -> EncodedVersion:
    """Codes a snapshot as a full copy."""
    tensors = snapshot.difference.distinct() if snapshot.difference else distinct_tensors(snapshot.tensors)
    return encode_full_tensors(
        tensors, directory, version=version, step=snapshot.step, probe_card=card, adapter=snapshot.adapter
    )


def _coded_size(encoded: EncodedVersion) -> int:
    return sum(blob.reference.size for blob in encoded.blobs)
