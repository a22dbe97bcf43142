"""A plot as inline SVG. Pure: values in, markup out; colours come from the page's style sheet.

The drawing is 420 units wide, so that its text stays readable on a phone's width. Series differ by dashes and markers too,
not by colour alone.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from hetero_rl.reports.blocks import Axis, Plot, Series
from hetero_rl.reports.text import escape, format_number

__all__ = ["render_plot"]

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 44
_TICKS = 5
_COLOURS = 6
_MOST_DECADES = 6
_LEGEND_LINE = 16
_FLAT = 1e-4


@dataclasses.dataclass(frozen=True, slots=True)
class _Scale:
    """From values of one axis to units of the drawing."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        inner = math.log10(value) if self.logarithmic else value
        share = (inner - self.low) / (self.high - self.low)
        return self.start + min(max(share, -0.02), 1.02) * (self.end - self.start)

    def fits(self, value: float) -> bool:
        return math.isfinite(value) and not (self.logarithmic and value <= 0)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            return _round_ticks(self.low, self.high)
        decades = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
        step = max(1, math.ceil(len(decades) / _MOST_DECADES))
        return [10.0**power for power in decades[::step]]


def render_plot(plot: Plot) -> str:
    """The plot as an `<svg>` element with title and description, or a sentence when it has no point to draw."""
    x_scale = _scale(plot.x, _x_values(plot), LEFT, WIDTH - RIGHT)
    y_scale = _scale(plot.y, _y_values(plot), HEIGHT - BOTTOM, TOP, bars=_has_bars(plot))
    if x_scale is None or y_scale is None:
        return f'<p class="note">{escape(plot.title)}: no finite value to draw.</p>'
    named = [*(series.name for series in plot.series)] if len(plot.series) > 1 else []
    height = HEIGHT + _LEGEND_LINE * (len(named) + len(plot.rules))
    label = f"{plot.title}: {plot.y.text} over {plot.x.text}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">',
        f"<title>{escape(label)}</title>",
        *_frame(plot, x_scale, y_scale),
    ]
    for index, series in enumerate(plot.series):
        parts += _drawn(series, index, x_scale, y_scale)
    parts += _rules(plot, y_scale)
    parts += _legend(plot, named)
    parts.append("</svg>")
    return "".join(parts)


def _x_values(plot: Plot) -> Iterable[float]:
    return itertools.chain.from_iterable(series.xs for series in plot.series)


def _y_values(plot: Plot) -> Iterable[float]:
    for series in plot.series:
        yield from series.ys
        yield from series.lows or ()
        yield from series.highs or ()
    for rule in plot.rules:
        yield rule.value


def _has_bars(plot: Plot) -> bool:
    return any(series.style == "bars" for series in plot.series)


def _scale(
    axis: Axis, values: Iterable[float], start: float, end: float, *, bars: bool = False
) -> _Scale | None:
    finite = [value for value in values if math.isfinite(value) and not (axis.logarithmic and value <= 0)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if axis.logarithmic:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return _Scale(low, high if high > low else low + 1, start, end, logarithmic=True)
    if bars:
        low, high = min(low, 0.0), max(high, 0.0)
    # A line that is flat but for its last digits is drawn flat.
    if high - low <= _FLAT * max(abs(high), abs(low)):
        margin = max(abs(high), abs(low)) * 0.1 or 1.0
        low, high = low - margin, high + margin
    ticks = _round_ticks(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    return _Scale(
        math.floor(low / step + 1e-9) * step,
        math.ceil(high / step - 1e-9) * step,
        start,
        end,
        logarithmic=False,
    )


def _round_ticks(low: float, high: float) -> list[float]:
    """Some multiples of 1, 2 or 5 times a power of ten between the bounds."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def _frame(plot: Plot, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>']
    x_ticks, y_ticks = x_scale.ticks(), y_scale.ticks()
    for tick in x_ticks:
        x = x_scale(tick)
        parts += [
            f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>',
            f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{_tick_text(tick, x_ticks)}</text>',
        ]
    for tick in y_ticks:
        y = y_scale(tick)
        parts += [
            f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>',
            f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_tick_text(tick, y_ticks)}</text>',
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    height = (TOP + bottom) / 2
    parts += [
        f'<text class="label" x="{middle:.1f}" y="{bottom + 34}" text-anchor="middle">{escape(plot.x.text)}</text>',
        (
            f'<text class="label" transform="translate(12 {height:.1f}) rotate(-90)" text-anchor="middle">'
            f"{escape(plot.y.text)}</text>"
        ),
    ]
    return parts


def _tick_text(value: float, ticks: Sequence[float]) -> str:
    """A tick with as many digits as tell it from its neighbours."""
    steps = [second - first for first, second in itertools.pairwise(ticks) if second > first]
    largest = max(map(abs, ticks))
    digits = 4 if not steps or largest == 0 else max(4, 2 + math.ceil(math.log10(largest / min(steps))))
    return escape(f"{value:.{min(digits, 6)}g}".replace("e-0", "e-").replace("e+0", "e"))


def _drawn(series: Series, index: int, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    kind = f"s{index % _COLOURS}"
    points = [
        (x_scale(x), y_scale(y), position)
        for position, (x, y) in enumerate(zip(series.xs, series.ys, strict=True))
        if x_scale.fits(x) and y_scale.fits(y)
    ]
    parts = _band(series, kind, x_scale, y_scale)
    if series.style == "bars":
        return parts + _bars(points, kind, len(series.xs), y_scale)
    if series.style == "line" and len(points) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
        parts.append(f'<path class="line {kind}" d="M{path}"/>')
    radius = 2.4 if series.style == "points" else 1.8
    parts += [f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y, _ in points]
    return parts


def _bars(points: Sequence[tuple[float, float, int]], kind: str, count: int, y_scale: _Scale) -> list[str]:
    base = y_scale.start if y_scale.logarithmic else y_scale(0.0)
    half = max(1.0, 0.35 * (WIDTH - LEFT - RIGHT) / max(count, 1))
    return [
        f'<rect class="bar {kind}" x="{x - half:.1f}" y="{min(y, base):.1f}" width="{2 * half:.1f}" '
        f'height="{max(abs(y - base), 0.5):.1f}"/>'
        for x, y, _ in points
    ]


def _band(series: Series, kind: str, x_scale: _Scale, y_scale: _Scale) -> list[str]:
    if series.lows is None or series.highs is None:
        return []
    bounds = [
        (x_scale(x), y_scale(low), y_scale(high))
        for x, low, high in zip(series.xs, series.lows, series.highs, strict=True)
        if x_scale.fits(x) and y_scale.fits(low) and y_scale.fits(high)
    ]
    if series.style != "line":
        return [f'<path class="line {kind}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>' for x, low, high in bounds]
    if not bounds:
        return []
    there = [f"{x:.1f} {low:.1f}" for x, low, _ in bounds]
    back = [f"{x:.1f} {high:.1f}" for x, _, high in reversed(bounds)]
    return [f'<path class="band {kind}" d="M{"L".join(there + back)}Z"/>']


def _rules(plot: Plot, y_scale: _Scale) -> list[str]:
    return [
        f'<path class="rule" d="M{LEFT} {y_scale(rule.value):.1f}H{WIDTH - RIGHT}"/>'
        for rule in plot.rules
        if y_scale.fits(rule.value)
    ]


def _legend(plot: Plot, named: Sequence[str]) -> list[str]:
    parts: list[str] = []
    entries = [(f"line s{index % _COLOURS}", name) for index, name in enumerate(named)]
    entries += [("rule", f"{rule.name}: {format_number(rule.value)}") for rule in plot.rules]
    for line, (kind, name) in enumerate(entries):
        y = HEIGHT + _LEGEND_LINE * line + 4
        shown = name if len(name) <= 58 else name[:57] + "…"
        parts += [
            f'<path class="{kind}" d="M{LEFT} {y}h26"/>',
            f'<text x="{LEFT + 32}" y="{y + 4}">{escape(shown)}</text>',
        ]
    return parts
