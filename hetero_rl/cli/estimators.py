"""`hetero-rl estimators`: which there are, and what one of them does."""

import inspect
import math
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hetero_rl.cli.options import JsonOutput
from hetero_rl.config.load import parse_override

if TYPE_CHECKING:
    from hetero_rl.estimators import Estimator

__all__ = ["app", "draw"]

app = typer.Typer(help="List the off-policy estimators, or look at one.")

_WIDTH, _HEIGHT = 61, 14
_SPAN = math.log(8)
"""The plot runs from W = 1/8 to W = 8."""


@app.callback(invoke_without_command=True)
def list_all(context: typer.Context) -> None:
    """List the off-policy estimators, or look at one."""
    if context.invoked_subcommand is not None:
        return
    # Kept out of the module: these import torch.
    from hetero_rl.estimators import estimator_class, list_estimators, make_estimator

    table = Table("name", "reads", "coefficient", box=None, pad_edge=False)
    for name in list_estimators():
        preset = estimator_class(name)
        table.add_row(name, make_estimator(name, preset.example_options).needs.value, escape(preset.formula))
    Console().print(table)
    typer.echo("\nhetero-rl estimators show NAME prints constants and reference, and draws the coefficient.")


@app.command()
def show(
    name: str = typer.Argument(metavar="NAME", help="An estimator of the list."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="OPTION=VALUE", help="One constant, such as c1_positive=2.5."
    ),
    as_json: JsonOutput = False,
) -> None:
    """Print formula, constants and reference, and draw the coefficient against W for both signs of A."""
    from hetero_rl.estimators import estimator_class, make_estimator

    preset = estimator_class(name)
    chosen = {".".join(path): value for path, value in map(parse_override, overrides)}
    estimator = make_estimator(name, {**preset.example_options, **chosen})
    if as_json:
        typer.echo(estimator.options.model_dump_json(indent=2))
        return
    typer.echo(f"{name}: {preset.formula}")
    typer.echo(f"Reads: {estimator.needs.value}.  Reference: {preset.reference}\n")
    typer.echo(inspect.getdoc(sys.modules[preset.__module__]) or "")
    typer.echo("\nConstants")
    for line in _constants(estimator):
        typer.echo(line)
    typer.echo("\n" + _plot(estimator))


def _constants(estimator: "Estimator[Any]") -> list[str]:
    """Each option with its value and meaning; an example value of a constant that has no default is marked."""
    lines = []
    for option, field in type(estimator.options).model_fields.items():
        value = getattr(estimator.options, option)
        note = " (no published value; shown for a try)" if field.is_required() else ""
        meaning = " ".join((field.description or "").split())
        lines.append(f"  {option} = {value!r}{note}\n      {meaning}")
    return lines


def _plot(estimator: "Estimator[Any]") -> str:
    from hetero_rl.estimators.curve import coefficient_curve

    weights = [math.exp(_SPAN * (2 * column / (_WIDTH - 1) - 1)) for column in range(_WIDTH)]
    title = "Coefficient against W = pi/mu, mu = 0.05, one token off-policy in a group of eight: + A > 0, - A < 0, * both"
    curves = {
        sign: coefficient_curve(estimator, weights, advantage)
        for sign, advantage in (("+", 1.0), ("-", -1.0))
    }
    return title + "\n" + draw(curves["+"], curves["-"])


def draw(positive: list[float], negative: list[float]) -> str:
    """Two curves over one axis of log W, as lines of text.

    Args:
        positive: Coefficients where A > 0, at equal steps of log W from 1/8 to 8.
        negative: Coefficients where A < 0, at the same places.
    """
    top = max(1.0, *positive, *negative)
    rows = [[" "] * len(positive) for _ in range(_HEIGHT + 1)]
    for mark, curve in (("+", positive), ("-", negative)):
        for column, value in enumerate(curve):
            row = round(value / top * _HEIGHT)
            rows[row][column] = mark if rows[row][column] == " " else "*"
    lines = [f"{row * top / _HEIGHT:7.2f} |{''.join(cells).rstrip()}" for row, cells in enumerate(rows)]
    lines.reverse()
    axis = " " * 8 + "+" + "-" * len(positive)
    return "\n".join([*lines, axis, _ticks(len(positive))])


def _ticks(width: int) -> str:
    labels = ("1/8", "1/4", "1/2", "1", "2", "4", "8")
    cells = [" "] * (width + 2)
    for index, label in enumerate(labels):
        center = round(index * (width - 1) / (len(labels) - 1))
        start = max(center - len(label) // 2, 0)
        cells[start : start + len(label)] = label
    return " " * 6 + "W  " + "".join(cells).rstrip()
