"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "ConfigFiles",
    "Credentials",
    "EndWithParent",
    "HubAddress",
    "JsonOutput",
    "MetricsListen",
    "Overrides",
    "RunArgument",
    "credential_flags",
    "metrics_flags",
]

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[CONFIG.toml]...", help="Settings; a later file wins over an earlier one."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as run.steps=200; wins over files."),
]
HubAddress = Annotated[str | None, typer.Option("--hub", metavar="HOST:PORT", help="A running hub.")]
Credentials = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        envvar="HETERO_RL_CREDENTIALS",
        help="Bundle of `hetero-rl certs issue`; stands for security.credentials.",
    ),
]
EndWithParent = Annotated[
    bool, typer.Option("--end-with-parent", hidden=True, help="Drain when standard input ends.")
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="Where Prometheus may ask this process; observability.metrics_listen if not given.",
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]


def credential_flags(credentials: Path | None) -> list[str]:
    """The short option as the setting that it stands for."""
    return [] if credentials is None else [f"security.credentials='{credentials.absolute()}'"]


def metrics_flags(listen: str | None, *, child: bool = False) -> list[str]:
    """The same of --metrics-listen. A child of a trainer shares its settings and leaves the address to it."""
    if child:
        return ["observability.metrics_listen=''"]
    return [] if listen is None else [f"observability.metrics_listen='{listen}'"]
