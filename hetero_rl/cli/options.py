"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ConfigFiles", "EndWithParent", "HubAddress", "JsonOutput", "Overrides", "RunArgument"]

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[CONFIG.toml]...", help="Settings; a later file wins over an earlier one."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as run.steps=200; wins over files."),
]
HubAddress = Annotated[str | None, typer.Option("--hub", metavar="HOST:PORT", help="A running hub.")]
EndWithParent = Annotated[
    bool, typer.Option("--end-with-parent", hidden=True, help="Drain when standard input ends.")
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
