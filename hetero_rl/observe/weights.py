"""What each weight version cost: pure functions from manifests to records and a table. Standard library and rich only."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero_rl.hub.stores.records import VersionRow
from hetero_rl.weights.adapter_rules import is_adapter_name
from hetero_rl.weights.manifest import element_count, raw_size
from hetero_rl.wire.messages import WeightManifest, WeightSync

__all__ = ["VersionRecord", "read_codings", "version_record", "weights_view"]

_SECONDS = ("fetch_seconds", "decode_seconds", "verify_seconds", "pause_seconds")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One published version as its manifest describes it. Tied tensors count once."""

    version: int
    step: int
    encoding: str
    base_version: int
    """0 for a full copy."""
    elements: int
    """Of what training changes: where adapters are published, theirs, and all otherwise."""
    changed_elements: int | None
    """None for a full copy, and for a delta whose trainer did not count."""
    coded_bytes: int
    """Bytes that one worker fetches for this version."""
    full_bytes: int
    """Bytes of a raw full copy."""
    abandoned: bool
    kept: bool
    adapter_rank: int | None = None
    """None for a version of plain or merged weights."""
    base_bytes: int = 0
    """Bytes of blobs with the frozen base, which a worker that has it does not fetch again; 0 without adapters."""
    syncs: int = 0
    """Workers that reported how they came to it; the seconds below are their medians, by their own clocks."""
    fetch_seconds: float | None = None
    decode_seconds: float | None = None
    verify_seconds: float | None = None
    pause_seconds: float | None = None
    encode_seconds: float | None = None
    """What the trainer's coding took; with the floors out of RUN/weights.jsonl, known for deltas."""
    floor_a_bytes: float | None = None
    """Entropy of positions and steps; see `hetero_rl.weights.floors`."""
    floor_b_bytes: float | None = None
    """The same given the old exponents."""

    @property
    def density(self) -> float | None:
        """Share of the elements whose bits changed."""
        known = self.changed_elements is not None and self.elements
        return self.changed_elements / self.elements if known and self.changed_elements is not None else None

    @property
    def bits_per_change(self) -> float | None:
        """Coded bits for each element that changed; None when none did, or nobody counted."""
        return 8 * self.coded_bytes / self.changed_elements if self.changed_elements else None

    @property
    def share_of_full(self) -> float | None:
        """Coded bytes over those of a raw full copy; None for a model without elements."""
        return self.coded_bytes / self.full_bytes if self.full_bytes else None

    def over(self, floor: float | None) -> float | None:
        """Coded bytes over a floor; None when nothing changed, or nobody counted."""
        return self.coded_bytes / floor if floor else None

    def as_json(self) -> dict[str, object]:
        """All fields, the computed ones too."""
        computed = {
            "density": self.density,
            "bits_per_change": self.bits_per_change,
            "share_of_full": self.share_of_full,
            "over_floor_a": self.over(self.floor_a_bytes),
            "over_floor_b": self.over(self.floor_b_bytes),
        }
        return dataclasses.asdict(self) | computed


def read_codings(path: Path) -> Mapping[int, Mapping[str, float]]:
    """By version, what coding it took and could have taken: "seconds", "floor_a_bytes", "floor_b_bytes"; empty without a record."""
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {line["version"]: line["coding"] for line in lines if "coding" in line}


def version_record(
    row: VersionRow,
    manifest: WeightManifest,
    syncs: Sequence[WeightSync] = (),
    coding: Mapping[str, float] | None = None,
) -> VersionRecord:
    """What a manifest says of a version's size and change, and workers of the time it took them.

    Args:
        row: What became of the version.
        manifest: How it was published.
        syncs: Reports of workers, of any versions.
        coding: Of `read_codings`.
    """
    reports = [sync for sync in syncs if sync.weight_version == manifest.version]
    medians = {
        name: statistics.median(getattr(sync, name) for sync in reports) for name in _SECONDS if reports
    }
    trained = [
        tensor for tensor in manifest.tensors if manifest.adapter is None or is_adapter_name(tensor.name)
    ]
    counts = [tensor.changed_elements for tensor in trained]
    counted = [count for count in counts if count is not None]
    return VersionRecord(
        version=manifest.version,
        step=manifest.step,
        encoding=manifest.encoding.name,
        base_version=manifest.base_version,
        elements=sum(map(element_count, trained)),
        changed_elements=sum(counted) if counts and len(counted) == len(counts) else None,
        coded_bytes=sum(blob.size for blob in manifest.blobs),
        full_bytes=sum(map(raw_size, manifest.tensors)),
        abandoned=row.abandoned,
        kept=not row.pruned,
        adapter_rank=None if manifest.adapter is None else manifest.adapter.rank,
        base_bytes=0 if manifest.adapter is None else _base_bytes(manifest),
        syncs=len(reports),
        encode_seconds=coding["seconds"] if coding else None,
        floor_a_bytes=coding["floor_a_bytes"] if coding else None,
        floor_b_bytes=coding["floor_b_bytes"] if coding else None,
        **medians,
    )


def _base_bytes(manifest: WeightManifest) -> int:
    """Bytes of the blobs that hold tensors of the base and no part of an adapter."""
    base = {t.blob_index for t in manifest.tensors if t.size and not is_adapter_name(t.name)}
    own = {t.blob_index for t in manifest.tensors if t.size and is_adapter_name(t.name)}
    return sum(manifest.blobs[index].size for index in base - own)


def weights_view(records: Sequence[VersionRecord]) -> RenderableType:
    """One line for each version, and the sum; what each holds, where one holds adapters."""
    adapted = any(record.adapter_rank is not None for record in records)
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    for column in ("version", "step"):
        table.add_column(column, justify="right")
    table.add_column("encoding")
    if adapted:
        table.add_column("holds")
    for column in ("base", "changed", "bytes", "bits/change", "of full"):
        table.add_column(column, justify="right")
    table.add_column("")
    for record in records:
        table.add_row(
            str(record.version),
            str(record.step),
            record.encoding,
            *([_held(record)] if adapted else []),
            str(record.base_version or "-"),
            _percent(record.density),
            f"{record.coded_bytes:,}",
            "-" if record.bits_per_change is None else f"{record.bits_per_change:.2f}",
            _percent(record.share_of_full),
            "abandoned" if record.abandoned else "",
        )
    coded, full = sum(record.coded_bytes for record in records), sum(record.full_bytes for record in records)
    share = _percent(coded / full if full else None)
    total = Text(f"{len(records)} versions, {coded:,} bytes for each worker; full copies: {full:,} ({share})")
    known = [record for record in records if record.syncs or record.encode_seconds is not None]
    if not known:
        return Group(table, Text(), total)
    return Group(table, Text(), _costs_table(known), Text(), total)


def _costs_table(records: Sequence[VersionRecord]) -> Table:
    """What each version took the trainer to code, in bits beside both floors, and the workers that came to it: medians."""
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    for column in (
        "version",
        "encode",
        "over floor A",
        "over floor B",
        "workers",
        "fetch",
        "decode",
        "verify",
        "pause",
    ):
        table.add_column(column, justify="right")
    for record in records:
        over = (record.over(floor) for floor in (record.floor_a_bytes, record.floor_b_bytes))
        table.add_row(
            str(record.version),
            _seconds(record.encode_seconds),
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in over),
            str(record.syncs),
            *(_seconds(getattr(record, name)) for name in _SECONDS),
        )
    return table


def _held(record: VersionRecord) -> str:
    if record.adapter_rank is None:
        return "all weights"
    return f"{'base, ' if record.base_bytes else ''}adapters of rank {record.adapter_rank}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"
