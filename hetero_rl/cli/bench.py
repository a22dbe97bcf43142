"""`hetero-rl bench`: one command for each benchmark."""

from collections.abc import Callable
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from hetero_rl.bench.registry import BENCHES, Bench
from hetero_rl.bench.schema import BenchReport, Figure

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure this machine against baselines that run beside, in the same minute."""


def _command(bench: Bench) -> Callable[[Path | None, bool], None]:
    def command(
        json: Path | None = typer.Option(None, "--json", metavar="FILE", help="Write the report there too."),
        quick: bool = typer.Option(False, "--quick", help="Take seconds; the figures prove nothing."),
    ) -> None:
        report = bench.run(quick=quick)
        if json is not None:
            report.write(json)
        _show(report)

    command.__doc__ = bench.summary
    return command


for _name, _entry in BENCHES.items():
    app.command(_name)(_command(_entry))


def _show(report: BenchReport) -> None:
    # The longest name and all columns fit into 80 characters.
    name = Column("figure", overflow="fold")
    table = Table(name, "value", "low, high", "", "target", box=box.SIMPLE_HEAD, pad_edge=False)
    for figure in report.figures:
        spread = f"{figure.low:.2f}, {figure.high:.2f}"
        table.add_row(figure.name, f"{figure.value:.2f}", spread, figure.unit, _verdict(figure))
    console = Console()
    console.print(table)
    for figure in report.figures:
        console.print(f"{figure.name}: {figure.baseline}", style="dim")


def _verdict(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{figure.relation} {figure.target:g} {'met' if figure.met else 'missed'}"
