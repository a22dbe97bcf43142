"""`hetero-rl workers`: drain, quarantine and readmit workers of a running job by name."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.options import Credentials, HubAddress, Overrides, credential_flags
from hetero_rl.launch.hub_access import client_config, connect_fleet, find_run, hub_of
from hetero_rl.wire.ports import FleetPort

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Drain, quarantine and readmit workers of a running job.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the worker; `hetero-rl status` lists them.")]
Run = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="RUN", help="The directory of a run; the newest below ./runs if not given."
    ),
]


@app.callback()
def _workers() -> None:
    """Drain, quarantine and readmit workers of a running job."""


@app.command()
def drain(
    name: Name,
    hub: HubAddress = None,
    run: Run = None,
    credentials: Credentials = None,
    overrides: Overrides = None,
) -> None:
    """Give a worker no more work; it finishes what it has, hands it in and leaves."""
    with _fleet(hub, run, credentials, overrides) as fleet:
        fleet.drain_worker(name)
    typer.echo(f"{name} drains: it finishes what it has and leaves")


@app.command()
def quarantine(
    name: Name,
    reason: Annotated[str, typer.Option(help="Why; stands in the history.")] = "asked by an operator",
    hub: HubAddress = None,
    run: Run = None,
    credentials: Credentials = None,
    overrides: Overrides = None,
) -> None:
    """Stop trusting a worker; it keeps running, and its results are refused until it is readmitted."""
    with _fleet(hub, run, credentials, overrides) as fleet:
        fleet.quarantine_worker(name, reason)
    typer.echo(f"{name} is in quarantine; end it with: hetero-rl workers readmit {name}")


@app.command()
def readmit(
    name: Name,
    hub: HubAddress = None,
    run: Run = None,
    credentials: Credentials = None,
    overrides: Overrides = None,
) -> None:
    """End a quarantine; the worker gets work again once it passes a probe card."""
    with _fleet(hub, run, credentials, overrides) as fleet:
        fleet.readmit_worker(name)
    typer.echo(f"{name} is readmitted: it scores the probe card of its weights before it gets work")


def _fleet(
    hub: str | None, run: Path | None, credentials: Path | None, overrides: list[str] | None
) -> AbstractContextManager[FleetPort]:
    directory = find_run(run) if hub is None else None
    address = hub if hub is not None else hub_of(directory or find_run(None))
    config = client_config(directory, [*(overrides or ()), *credential_flags(credentials)])
    return connect_fleet(address, config)
