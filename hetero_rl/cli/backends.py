"""`hetero-rl backends`: what is installed and what it sees."""

import json
from itertools import starmap

import typer
from rich.console import Console
from rich.table import Table

from hetero_rl.cli.options import JsonOutput
from hetero_rl.worker.backend import Backend, DeviceReport, find_backend, installed_backends

__all__ = ["backends"]


def backends(as_json: JsonOutput = False) -> None:
    """List the installed inference backends and the devices that each of them finds here."""
    found = [(backend, backend.detect()) for backend in map(find_backend, sorted(installed_backends()))]
    if as_json:
        typer.echo(json.dumps(list(starmap(_record, found)), indent=2))
    elif found:
        Console().print(_table(found))
    else:
        typer.echo("No backend is installed. Install one with: pip install hetero-rl-backend-cpu")


def _record(backend: Backend, report: DeviceReport) -> dict[str, object]:
    return {
        "name": backend.name,
        "vendor": backend.vendor,
        "description": backend.description,
        "engines": sorted(backend.engines),
        "default_engine": backend.default_engine,
        "available": report.available,
        "devices": list(report.devices),
        "advice": report.advice,
    }


def _table(found: list[tuple[Backend, DeviceReport]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("backend", "vendor", "engines", "devices found here"):
        table.add_column(column)
    for backend, report in found:
        engines = ", ".join(
            f"{name} (default)" if name == backend.default_engine else name
            for name in sorted(backend.engines)
        )
        devices = ", ".join(report.devices) if report.available else f"[yellow]none[/] {report.advice}"
        table.add_row(backend.name, backend.vendor, engines, devices)
    return table
