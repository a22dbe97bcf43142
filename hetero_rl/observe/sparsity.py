"""Update sparsity of a run, out of RUN/weights.jsonl: shares by version, layer and kind of matrix. Standard library and rich."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text

from hetero_rl.errors import StorageError
from hetero_rl.reports.blocks import Axis, Column, Page, Plot, Section, Series, Table

__all__ = [
    "Counts",
    "SparsityVersion",
    "by_kind",
    "by_layer",
    "read_sparsity",
    "sparsity_page",
    "sparsity_view",
]

_LAYER = re.compile(r"\.(\d+)\.")
_BAR = 30


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Elements, how many changed, and of the version before: how many changed then, and in both."""

    elements: int = 0
    changed: int = 0
    changed_before: int | None = 0
    both: int | None = 0

    def __add__(self, other: "Counts") -> "Counts":
        known = self.both is not None and other.both is not None
        return Counts(
            self.elements + other.elements,
            self.changed + other.changed,
            (self.changed_before or 0) + (other.changed_before or 0) if known else None,
            (self.both or 0) + (other.both or 0) if known else None,
        )

    @property
    def density(self) -> float:
        """Share of the elements that changed."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def repeated(self) -> float | None:
        """Share of what changed that had changed in the version before too; the density before is what chance gives."""
        if self.both is None or not self.changed:
            return None
        return self.both / self.changed

    @property
    def chance(self) -> float | None:
        """The share repeated if masks were independent: the density of the version before."""
        if self.changed_before is None or not self.elements:
            return None
        return self.changed_before / self.elements

    @property
    def jaccard(self) -> float | None:
        """What changed in both versions over what changed in either."""
        if self.both is None or self.changed_before is None:
            return None
        either = self.changed + self.changed_before - self.both
        return self.both / either if either else None


@dataclasses.dataclass(frozen=True, slots=True)
class SparsityVersion:
    """What one delta changed, by tensor."""

    version: int
    step: int
    tensors: dict[str, Counts]

    @property
    def total(self) -> Counts:
        """Of the whole model; tied tensors count once."""
        return sum(self.tensors.values(), Counts())

    def as_json(self) -> dict[str, object]:
        """Counts and shares, whole and by tensor."""
        total = self.total
        shares = {"density": total.density, "repeated": total.repeated, "jaccard": total.jaccard}
        tensors = {name: dataclasses.asdict(counts) for name, counts in self.tensors.items()}
        return {"version": self.version, "step": self.step, **shares, "tensors": tensors}


def read_sparsity(path: Path) -> list[SparsityVersion]:
    """The versions of a record, oldest first; a last line that was cut short is left out.

    Raises:
        StorageError: There is no record, or a line of it is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}; a trainer writes it when it publishes deltas"
        ) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            tensors = {name: Counts(*counts) for name, counts in fields["tensors"].items()}
            found.append(SparsityVersion(int(fields["version"]), int(fields["step"]), tensors))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise StorageError(f"line {number} of {path} is damaged: {error}") from error
    return found


def by_layer(versions: Sequence[SparsityVersion]) -> dict[str, Counts]:
    """All versions together, by the layer's number in the tensor's name; "other" is what lies in none."""
    return _grouped(versions, lambda name: match[1] if (match := _LAYER.search(name)) else "other")


def by_kind(versions: Sequence[SparsityVersion]) -> dict[str, Counts]:
    """All versions together, by kind of matrix: the tensor's name without "weight" and the layer before."""
    return _grouped(versions, _kind)


def _kind(name: str) -> str:
    parts = [
        part
        for part in name.split(".")
        if part not in {"weight", "model", "base_model"} and not part.isdigit()
    ]
    return parts[-1] if parts else name


def _grouped(versions: Iterable[SparsityVersion], key: Callable[[str], str]) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for version in versions:
        for name, counts in version.tensors.items():
            found[key(name)] = found.get(key(name), Counts()) + counts
    return dict(sorted(found.items(), key=lambda item: (not item[0].isdigit(), item[0].zfill(6))))


def sparsity_view(versions: Sequence[SparsityVersion]) -> RenderableType:
    """Tables with bars for a terminal."""
    totals = {f"{version.version} (step {version.step})": version.total for version in versions}
    return Group(
        _text_table("version", totals),
        Text(),
        _text_table("layer", by_layer(versions)),
        Text(),
        _text_table("kind of matrix", by_kind(versions)),
        Text(),
        Text(
            "repeated: share of what changed that had changed in the version before too; chance: if masks were independent"
        ),
    )


def _text_table(title: str, rows: dict[str, Counts]) -> TextTable:
    table = TextTable(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column(title)
    for column in ("elements", "changed", "share", "repeated", "chance"):
        table.add_column(column, justify="right")
    table.add_column("")
    most = max((counts.density for counts in rows.values()), default=0.0)
    for name, counts in rows.items():
        bar = "█" * round(_BAR * counts.density / most) if most else ""
        shares = (counts.density, counts.repeated, counts.chance)
        table.add_row(name, f"{counts.elements:,}", f"{counts.changed:,}", *map(_percent, shares), bar)
    return table


def sparsity_page(run: str, versions: Sequence[SparsityVersion]) -> Page:
    """The same as a page that needs no other file."""
    whole = sum((version.total for version in versions), Counts())
    steps = [float(version.step) for version in versions]
    density = Series(name="changed", xs=steps, ys=[100 * version.total.density for version in versions])
    repeated = [(step, version.total.repeated) for step, version in zip(steps, versions, strict=True)]
    known = [(step, 100 * share) for step, share in repeated if share is not None]
    overlap = Series(name="repeated", xs=[step for step, _ in known], ys=[share for _, share in known])
    return Page(
        title=f"Update sparsity of {run}",
        first_line=f"{len(versions)} versions; on average {_percent(whole.density)} of the served values changed.",
        summary=(),
        findings=(),
        sections=(
            Section("By version", (_plot("Share that changed", density), _plot("Repeated from the version before", overlap))),
            Section("By layer", (_table("layer", by_layer(versions)),)),
            Section("By kind of matrix", (_table("kind", by_kind(versions)),)),
        ),
    )  # fmt: skip


def _plot(title: str, series: Series) -> Plot:
    return Plot(title=title, x=Axis("step", "1"), y=Axis("share", "%"), series=(series,))


def _table(name: str, rows: dict[str, Counts]) -> Table:
    columns = (
        Column(name), Column("elements", digits=12), Column("share changed", "%"), Column("repeated", "%"), Column("chance", "%"),
    )  # fmt: skip
    cells = [
        (
            key,
            counts.elements,
            *(
                None if share is None else 100 * share
                for share in (counts.density, counts.repeated, counts.chance)
            ),
        )
        for key, counts in rows.items()
    ]
    return Table(f"All versions together, by {name}", columns, cells)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"
