"""`hetero-rl cluster`: from an inventory to files for each host, checked, copied and started."""

import datetime as dt
import shlex
import subprocess  # ruff: ignore[suspicious-subprocess-import] argument lists built here; no shell
from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.deploy.inventory import load_inventory
from hetero_rl.errors import ConfigError
from hetero_rl.worker.backend import Backend, find_backend, installed_backends

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Deploy over several hosts with docker compose.")

InventoryFile = Annotated[Path, typer.Argument(metavar="CLUSTER.toml", help="The inventory.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where `render` writes.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="Only this host; may be repeated.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the commands and run none.")]
_OUT = Path("cluster")


@app.callback()
def _cluster() -> None:
    """Deploy over several hosts with docker compose."""


@app.command()
def render(
    file: InventoryFile,
    out: Out = _OUT,
    monitoring: Annotated[
        Path,
        typer.Option(
            "--monitoring",
            metavar="DIR",
            help="Files for a host of that role: docker/monitoring of a checkout.",
        ),
    ] = Path("docker/monitoring"),
) -> None:
    """Write a directory for each host: compose file, .env and credentials. Safe to repeat."""
    from hetero_rl.deploy.render import render as write

    for directory in write(load_inventory(file), file, out, _backends(), monitoring):
        typer.echo(f"wrote {directory}")
    typer.echo(f"{out}/authority stays here: whoever has it can make credentials")


@app.command()
def check(
    file: InventoryFile,
    doctor: Annotated[
        Path,
        typer.Option(
            "--doctor", metavar="DIR", help="Directory of HOST.json, from `hetero-rl doctor --json` there."
        ),
    ],
) -> None:
    """Hold the inventory against what the doctor said on each host; ends with 1 when something does not fit."""
    from hetero_rl.deploy.check import check_cluster, read_records

    inventory = load_inventory(file)
    records = read_records(doctor, inventory)
    findings = check_cluster(inventory, records, _backends(), dt.datetime.now(dt.UTC))
    for finding in findings:
        typer.echo(f"{finding.host}: {finding.problem}\n    change: {finding.change}")
    if findings:
        raise typer.Exit(1)
    typer.echo(f"{len(inventory.hosts)} hosts fit the inventory")


@app.command()
def up(file: InventoryFile, out: Out = _OUT, host: Hosts = None, dry_run: DryRun = False) -> None:
    """Copy the rendered files over ssh and start what they name."""
    _run("up", file, out, host, dry_run=dry_run)


@app.command()
def down(file: InventoryFile, out: Out = _OUT, host: Hosts = None, dry_run: DryRun = False) -> None:
    """Drain and stop; runs and caches stay."""
    _run("down", file, out, host, dry_run=dry_run)


@app.command()
def status(file: InventoryFile, out: Out = _OUT, host: Hosts = None, dry_run: DryRun = False) -> None:
    """Show the containers of each host."""
    _run("status", file, out, host, dry_run=dry_run)


@app.command()
def compose() -> None:
    """Print the compose file for any host: a profile for each role and vendor."""
    typer.echo(any_host_text(), nl=False)


def any_host_text() -> str:
    """The text of `docker/compose.yaml`."""
    from hetero_rl.deploy.compose import compose_for_any_host, to_yaml

    comment = (
        "One file for any host: `docker compose --profile cpu up` tries everything on this machine; --profile hub --profile trainer\n"
        "on the host that trains, --profile ascend | rocm | cuda | relay on those that generate, --profile monitoring beside the hub.\n"
        "Settings come from .env, see docs/deployment.md. Written by `hetero-rl cluster compose`; devices and mounts are the backend\n"
        "packages' to say."
    )
    return to_yaml(compose_for_any_host(_backends()), comment)


def _backends() -> dict[str, Backend]:
    return {name: find_backend(name) for name in installed_backends()}


def _run(action: str, file: Path, out: Path, hosts: list[str] | None, *, dry_run: bool) -> None:
    from hetero_rl.deploy.remote import commands

    for command in commands(action, load_inventory(file), out, tuple(hosts or ())):
        typer.echo(f"+ {shlex.join(command)}")
        if dry_run:
            continue
        code = subprocess.run(command, check=False).returncode
        if code:
            raise ConfigError(f"`{shlex.join(command)}` ended with exit code {code}")
