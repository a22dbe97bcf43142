"""`hetero-rl status`: hub, workers, versions and queues of a running job."""

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from hetero_rl.cli.options import Credentials, HubAddress, JsonOutput, Overrides, credential_flags
from hetero_rl.config.tree import CostConfig
from hetero_rl.errors import UnreachableError
from hetero_rl.launch.hub_access import client_config, connect_fleet, find_run, hub_of
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.observe.fleet import fetch_fleet, fleet_record
from hetero_rl.observe.past import describe_past_run, past_run_record
from hetero_rl.observe.tables import fleet_view
from hetero_rl.wire.ports import FleetPort

__all__ = ["status"]

WATCH_SECONDS = 1.0


def status(
    hub: HubAddress = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="RUN", help="The directory of a run; the newest below ./runs if not given."
        ),
    ] = None,
    as_json: JsonOutput = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until Ctrl-C.")] = False,
    credentials: Credentials = None,
    overrides: Overrides = None,
) -> None:
    """Show hub, workers, weight versions and queues of a running job; exit code 1 when none is running."""
    directory = find_run(run) if hub is None else None
    try:
        _show(
            hub, directory, [*(overrides or ()), *credential_flags(credentials)], as_json=as_json, watch=watch
        )
    except UnreachableError:
        if directory is None:
            raise
        text = json.dumps(past_run_record(directory), indent=2) if as_json else describe_past_run(directory)
        typer.echo(text)
        raise typer.Exit(1) from None


def _show(
    hub: str | None, run: RunDirectory | None, overrides: Sequence[str], *, as_json: bool, watch: bool
) -> None:
    address = hub if hub is not None else hub_of(run or find_run(None))
    run_dir = None if run is None else run.root
    config = client_config(run, overrides)
    with connect_fleet(address, config) as fleet:
        if watch:
            _watch(fleet, run_dir, config.cost)
            return
        snapshot = fetch_fleet(fleet, include_gone=True, run_dir=run_dir, prices=config.cost)
        if as_json:
            typer.echo(json.dumps(fleet_record(snapshot), indent=2))
        else:
            Console().print(fleet_view(snapshot))


def _watch(fleet: FleetPort, run_dir: Path | None, prices: CostConfig) -> None:
    snapshot = fetch_fleet(fleet, include_gone=True, run_dir=run_dir, prices=prices)
    with Live(fleet_view(snapshot), auto_refresh=False) as live, contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(WATCH_SECONDS)
            snapshot = fetch_fleet(fleet, include_gone=True, after=snapshot, run_dir=run_dir, prices=prices)
            live.update(fleet_view(snapshot), refresh=True)
