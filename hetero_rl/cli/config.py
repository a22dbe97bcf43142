"""`hetero-rl config`: look at the settings."""

import typer

from hetero_rl.cli.options import ConfigFiles, JsonOutput, Overrides
from hetero_rl.config import load_config, show_config

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the settings.")


@app.callback()
def _config() -> None:
    """Keeps `show` a command of its own when it is the only one."""


@app.command()
def show(
    files: ConfigFiles = None,
    overrides: Overrides = None,
    explain: bool = typer.Option(False, "--explain", help="Print each key's meaning above it."),
    as_json: JsonOutput = False,
) -> None:
    """Print the resolved settings: defaults, files and --set together."""
    config = load_config(files or (), overrides or ())
    text = config.model_dump_json(indent=2) if as_json else show_config(config, explain=explain)
    typer.echo(text.rstrip("\n"))
