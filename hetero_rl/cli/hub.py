"""`hetero-rl hub`: the process that workers and the trainer dial."""

from pathlib import Path
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
from hetero_rl.launch.lifeline import follow_parent
from hetero_rl.launch.supervisor import HUB_GRACE_SECONDS

__all__ = ["hub"]


def hub(
    files: ConfigFiles = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Directory of the run; run.dir if not given.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on; hub.listen if not given."),
    ] = None,
    credentials: Credentials = None,
    metrics_listen: MetricsListen = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry",
            metavar="FILE",
            help="Who may call, of `hetero-rl certs`; stands for security.registry.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen beyond loopback without TLS: whoever reaches the port owns the run."
        ),
    ] = False,
    overrides: Overrides = None,
    end_with_parent: EndWithParent = False,
) -> None:
    """Run the hub of a run until SIGTERM or Ctrl-C, which drain it."""
    from hetero_rl.hub.main import serve

    flags = [*credential_flags(credentials), *metrics_flags(metrics_listen, child=end_with_parent)]
    if listen is not None:
        flags.append(f"hub.listen='{listen}'")
    if registry is not None:
        flags.append(f"security.registry='{registry.absolute()}'")
    if insecure:
        flags.append("security.insecure=true")
    config = load_config(files or (), [*(overrides or ()), *flags])
    log_to_stderr(config, "hub", run=config.run.name)
    if end_with_parent:
        follow_parent(HUB_GRACE_SECONDS)
    serve(config, run_dir or config.run.dir)
