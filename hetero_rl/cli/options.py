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
    "Overrides",
    "RunArgument",
    "credential_flags",
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
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]


def credential_flags(credentials: Path | None) -> list[str]:
    """The short option as the setting that it stands for."""
    return [] if credentials is None else [f"security.credentials='{credentials.absolute()}'"]
