"""What a page is made of: paragraphs, tables, plots, coloured tokens. Values only; `page` turns them into HTML."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

from hetero_rl.reports.findings import Finding

__all__ = [
    "Axis",
    "Block",
    "Cell",
    "Column",
    "Page",
    "Paragraph",
    "Plot",
    "Rule",
    "Section",
    "Series",
    "Table",
    "TokenStrip",
    "TokenValue",
    "plot_table",
]

Cell: TypeAlias = str | int | float | bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    unit: str = ""
    """Unit of its numbers, such as "nats"; empty for text and pure numbers."""
    digits: int = 3
    """Significant digits of its numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns. Every row has one cell for each column."""

    caption: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    collapsed: bool = False
    """Whether it is folded away until a person opens it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    label: str
    unit: str
    """Unit, such as "nats" or "tokens"; "1" for a pure number."""
    logarithmic: bool = False
    """Whether it is spaced by powers of ten; values at or below 0 are left out then."""

    @property
    def text(self) -> str:
        """Label and unit."""
        return self.label if self.unit in {"", "1"} else f"{self.label} [{self.unit}]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, cloud or set of bars. All sequences have one length."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] | None = None
    """Lower confidence bounds; None: not drawn."""
    highs: Sequence[float] | None = None
    """Upper confidence bounds."""
    style: Literal["line", "points", "bars"] = "line"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A named horizontal line, such as a threshold."""

    name: str
    value: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot that says what it shows; its numbers stand in a table beside it."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    note: str = ""
    """How to read it, one or two sentences."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenValue:
    """One decoded token and the number that colours it."""

    text: str
    value: float
    """|log mu - log pi| in nats."""
    hint: str = ""
    """Shown when a person points at it."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenStrip:
    """Decoded tokens in order, each coloured by its gap."""

    caption: str
    tokens: Sequence[TokenValue]


Block: TypeAlias = Paragraph | Table | Plot | TokenStrip


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report."""

    title: str
    first_line: str
    """The verdict in one sentence (`findings.first_line`)."""
    findings: Sequence[Finding]
    sections: Sequence[Section]
    summary: Sequence[tuple[str, str]] = ()
    """Named facts that belong above everything: model, versions, when."""


def plot_table(plot: Plot) -> Table:
    """The numbers of a plot: one row for each point."""
    named = len(plot.series) > 1
    bounded = any(series.lows is not None for series in plot.series)
    columns = [Column(plot.x.label, _shown(plot.x.unit), 4), Column(plot.y.label, _shown(plot.y.unit), 4)]
    if named:
        columns.insert(0, Column("series"))
    if bounded:
        columns += [Column("from", _shown(plot.y.unit)), Column("to", _shown(plot.y.unit))]
    return Table(
        plot.title, tuple(columns), [row for series in plot.series for row in _rows(series, named, bounded)]
    )


def _rows(series: Series, named: bool, bounded: bool) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for index, (x, y) in enumerate(zip(series.xs, series.ys, strict=True)):
        row: list[Cell] = [series.name] if named else []
        row += [x, y]
        if bounded:
            row.append(series.lows[index] if series.lows is not None else None)
            row.append(series.highs[index] if series.highs is not None else None)
        rows.append(row)
    return rows


def _shown(unit: str) -> str:
    return "" if unit == "1" else unit
