"""`hetero-rl top`: a running job on the whole screen."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from hetero_rl.cli.options import Credentials, HubAddress, Overrides, credential_flags
from hetero_rl.errors import UnreachableError
from hetero_rl.launch.hub_access import client_config, connect_fleet, find_run, hub_of
from hetero_rl.observe.fleet import fetch_fleet
from hetero_rl.observe.top import FleetHistory, top_view
from hetero_rl.wire.ports import FleetPort

__all__ = ["top", "watch"]


def top(
    hub: HubAddress = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="RUN", help="The directory of a run; the newest below ./runs if not given."
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.2, help="Seconds between two looks at the hub.")
    ] = 1.0,
    credentials: Credentials = None,
    overrides: Overrides = None,
) -> None:
    """Watch workers, speed, lag, mismatch and events of a running job on the whole screen, until Ctrl-C.

    Without a terminal it prints what it saw within one interval and ends.
    """
    directory = find_run(run) if hub is None else None
    address = hub if hub is not None else hub_of(directory or find_run(None))
    config = client_config(directory, [*(overrides or ()), *credential_flags(credentials)])
    run_dir = None if directory is None else directory.root
    with connect_fleet(address, config) as fleet, contextlib.suppress(KeyboardInterrupt):
        watch(fleet, Console(), title=f"hub {address}", seconds=seconds, run_dir=run_dir)


def watch(
    fleet: FleetPort,
    console: Console,
    *,
    title: str,
    seconds: float,
    run_dir: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Looks at a hub until KeyboardInterrupt; twice, and prints, where there is no terminal.

    Args:
        fleet: The hub. While it does not answer, the last answer stays, with the reason.
        console: Where to paint.
        title: Above the view.
        seconds: Between two looks.
        run_dir: Directory of the run, for its calibrations.
        sleep: Waits.
        now: A monotonic clock.

    Raises:
        UnreachableError: The hub did not answer the first time.
    """
    history = FleetHistory()

    def look() -> None:
        snapshot = fetch_fleet(fleet, include_gone=True, after=history.newest, run_dir=run_dir)
        history.add(now(), snapshot)

    look()
    if not console.is_terminal:
        sleep(seconds)
        look()
        console.print(top_view(history, title=title))
        return
    with Live(top_view(history, title=title), console=console, screen=True, auto_refresh=False) as live:
        while True:
            sleep(seconds)
            problem = ""
            try:
                look()
            except UnreachableError as error:
                problem = f"the hub does not answer: {error}"
            live.update(top_view(history, title=title, problem=problem), refresh=True)
