"""Which elements changed from version to version, as counts for each tensor: one line of RUN/weights.jsonl. Needs numpy.

    {"version": 7, "step": 6, "base_version": 6, "tensors": {NAME: [elements, changed, changed_before, both]},
     "coding": {"seconds": 0.41, "floor_a_bytes": 123456.7, "floor_b_bytes": 98765.4}}

`coding` is what the trainer's coding took, and the floors of `hetero_rl.weights.floors`.
Of versions of adapters only these are counted.
`changed_before` counts what the delta before changed and `both` what both did; they are null for the first delta of a chain.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.weights.manifest import element_count
from hetero_rl.weights.rewind import ChangeLog
from hetero_rl.wire.messages import WeightManifest

__all__ = ["Coding", "append_line", "count_both", "sparsity_line"]

Counts = Sequence[int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Coding:
    """What coding a delta took, and could have taken."""

    seconds: float
    floor_a_bytes: float
    floor_b_bytes: float


def sparsity_line(
    manifest: WeightManifest, log: ChangeLog, before: ChangeLog | None, coding: Coding | None = None
) -> dict[str, object]:
    """The line of a delta.

    Args:
        manifest: Of the delta.
        log: Where it changed something.
        before: The same of the delta to its base version, None for the first one after a full copy.
        coding: Goes into the line as it is.
    """
    tensors: dict[str, Counts] = {}
    for entry in manifest.tensors:
        if manifest.adapter is not None and not is_adapter_name(entry.name):
            continue  # frozen
        elements, positions = element_count(entry), log.positions(entry.name)
        if before is None:
            tensors[entry.name] = (elements, positions.size, None, None)
        else:
            earlier = before.positions(entry.name)
            both = count_both(elements, earlier, positions)
            tensors[entry.name] = (elements, positions.size, earlier.size, both)
    return {
        "version": manifest.version,
        "step": manifest.step,
        "base_version": manifest.base_version,
        "tensors": tensors,
        **({"coding": dataclasses.asdict(coding)} if coding is not None else {}),
    }


def count_both(elements: int, one: NDArray[np.integer], other: NDArray[np.integer]) -> int:
    """How many flat positions below `elements` two sets share."""
    if not one.size or not other.size:
        return 0
    marked = np.zeros(elements, np.bool_)
    marked[one] = True
    return int(np.count_nonzero(marked[other]))


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Adds a line to a record; makes the file when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")
