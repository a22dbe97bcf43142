"""Earlier versions out of the newest one: what each delta overwrote, kept on disk, for merged deltas. Needs numpy and torch.

    version n-2 ──delta──► n-1 ──delta──► n        held: the bytes of n
                  │               │
              ChangeLog       ChangeLog            what lay at the changed positions before
                  └──────┬────────┘
    Rewound: n's bytes with both logs put back, newest first = the bytes of n-2, one tensor at a time

A log takes about six bytes for each element that changed. Nothing here trusts a log: a rewound tensor has the digest of
the version that it claims to be, or it is not used.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_rl.errors import DamagedError
from hetero_rl.weights.delta import bits_of
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.held import HeldWeights
from hetero_rl.weights.learned import Bits
from hetero_rl.wire.messages import WeightManifest

__all__ = ["ChangeLog", "Rewound"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's changes lie in a log, and how positions are written there."""

    offset: int
    changes: int
    position_type: str


class ChangeLog:
    """What one delta overwrote. Written once, tensor by tensor, then read.

    Args:
        base: The version that the delta was against.
        path: File of the log; replaced.
    """

    def __init__(self, base: WeightManifest, path: Path) -> None:
        self.base = base
        self.path = path
        self._places: dict[str, _Place] = {}
        self._size = 0
        self._incomplete = False
        path.unlink(missing_ok=True)

    def add(self, name: str, positions: NDArray[np.int64], old: Bits, elements: int) -> None:
        """Notes the bits that a tensor of `elements` elements had at some flat positions."""
        if not positions.size:
            return
        kind = "<u4" if elements <= 2**32 else "<i8"
        try:
            with self.path.open("ab") as file:
                file.write(positions.astype(kind).data)
                file.write(np.ascontiguousarray(old[positions]).data)
        except OSError as error:  # a merged delta is a saving, and no reason to stop a run
            _LOG.warning("no merged delta will go back beyond version %d: %s", self.base.version, error)
            self._places, self._incomplete = {}, True
        if self._incomplete:
            return
        place = _Place(self._size, positions.size, kind)
        self._places[name] = place
        self._size += positions.size * (np.dtype(kind).itemsize + old.itemsize)

    def touches(self, name: str) -> bool:
        """Whether the delta changed a tensor; raises DamagedError when the log has not everything."""
        if self._incomplete:
            raise DamagedError(f"{self.path} could not be written: there was no room for it")
        return name in self._places

    def positions(self, name: str) -> NDArray[np.integer[Any]]:
        """The flat positions that the delta changed in a tensor, ascending."""
        place = self._places.get(name)
        if place is None:
            return np.empty(0, np.int64)
        return np.fromfile(self.path, place.position_type, place.changes, offset=place.offset)

    def restore(self, name: str, bits: Bits) -> None:
        """Puts back what the delta overwrote in a tensor, in place."""
        place = self._places.get(name)
        if place is None:
            return
        positions = np.fromfile(self.path, place.position_type, place.changes, offset=place.offset)
        values_at = place.offset + positions.nbytes
        values = np.fromfile(self.path, bits.dtype, place.changes, offset=values_at)
        if values.size < place.changes or positions.max() >= bits.size:
            raise DamagedError(f"{self.path}, which says what {name!r} was before, is damaged")
        bits[positions] = values

    def remove(self) -> None:
        """Removes the file."""
        self.path.unlink(missing_ok=True)


class Rewound:
    """An earlier version as the base of a merged delta; one tensor of it is in memory at a time.

    Args:
        newest: The bytes held now.
        logs: Those of every delta between, oldest first; the first one's base is the version meant.
    """

    def __init__(self, newest: HeldWeights, logs: Sequence[ChangeLog]) -> None:
        self._newest = newest
        self._logs = logs
        self._entries = {entry.name: entry for entry in logs[0].base.tensors}

    @property
    def manifest(self) -> WeightManifest:
        """The version meant."""
        return self._logs[0].base

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor; raises DamagedError when they are not those of the version."""
        held = self._newest.raw(name)
        if not any(log.touches(name) for log in self._logs):
            return held
        entry = self._entries[name]
        bits: NDArray[Any] = bits_of(entry.data_type, held).copy()
        for log in reversed(self._logs):
            log.restore(name, bits)
        data = memoryview(bits.view(np.uint8))  # type: ignore[arg-type]  # numpy's arrays are buffers
        if digest_of_bytes(data) != entry.digest:
            raise DamagedError(f"tensor {name!r} could not be taken back to version {self.manifest.version}")
        return data
