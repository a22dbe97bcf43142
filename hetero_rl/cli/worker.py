"""`hetero-rl worker`: generates for a hub, here or on another machine."""

import socket
from typing import Annotated

import typer

from hetero_rl.cli.logs import log_to_stderr
from hetero_rl.cli.options import (
    ConfigFiles,
    Credentials,
    EndWithParent,
    MetricsListen,
    Overrides,
    credential_flags,
    metrics_flags,
)
from hetero_rl.config import load_config
from hetero_rl.errors import ConfigError
from hetero_rl.launch.checks import split_address

__all__ = ["worker"]


def worker(
    files: ConfigFiles = None,
    hub: Annotated[
        str | None,
        typer.Option("--hub", metavar="HOST:PORT", help="The hub to work for; hub.address if not given."),
    ] = None,
    infer_backend: Annotated[str, typer.Option("--infer-backend", help="Backend that generates.")] = "cpu",
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name at the hub; HOST-BACKEND if not given. One worker each."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Engine of the backend; its own choice if not given.")
    ] = None,
    relay: Annotated[
        str | None,
        typer.Option(
            "--relay",
            metavar="HOST:PORT",
            help="Relay of this site, for weights; inference.worker.relay if not given.",
        ),
    ] = None,
    credentials: Credentials = None,
    metrics_listen: MetricsListen = None,
    overrides: Overrides = None,
    end_with_parent: EndWithParent = False,
) -> None:
    """Generate for a hub until its run is complete; SIGTERM or Ctrl-C drain, twice leaves at once."""
    flags = [*credential_flags(credentials), *metrics_flags(metrics_listen, child=end_with_parent)]
    if relay is not None:
        split_address(relay, "--relay")
        flags.append(f"inference.worker.relay='{relay}'")
    config = load_config(files or (), [*(overrides or ()), *flags])
    address = hub or config.hub.address
    if address is None:
        raise ConfigError("name the hub to work for with --hub HOST:PORT; `hetero-rl status` shows a run's")
    split_address(address, "--hub")
    worker_name = name or f"{socket.gethostname().partition('.')[0]}-{infer_backend}"
    log_to_stderr(config, "worker", worker=worker_name)
    from hetero_rl.worker.main import run_worker

    run_worker(
        address,
        infer_backend,
        config,
        worker_name,
        exit_with_parent=end_with_parent,
        engine_name=engine,
    )
