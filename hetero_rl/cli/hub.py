"""`hetero-rl hub`: the process that workers and the trainer dial."""

from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.logs import log_to_stderr
from hetero_rl.cli.options import ConfigFiles, EndWithParent, Overrides
from hetero_rl.config import load_config
from hetero_rl.launch.lifeline import follow_parent
from hetero_rl.launch.supervisor import HUB_GRACE_SECONDS

__all__ = ["hub"]


def hub(
    files: ConfigFiles = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Directory of the run; run.dir if not given.")
    ] = None,
    overrides: Overrides = None,
    end_with_parent: EndWithParent = False,
) -> None:
    """Run the hub of a run until SIGTERM or Ctrl-C, which drain it."""
    from hetero_rl.hub.main import serve

    config = load_config(files or (), overrides or ())
    log_to_stderr(config.logging.level)
    if end_with_parent:
        follow_parent(HUB_GRACE_SECONDS)
    serve(config, run_dir or config.run.dir)
