"""`hetero-rl trainer-rank`: one process of the trainer, started by a launcher; people start `hetero-rl train`."""

from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.logs import log_to_stderr, quiet_libraries
from hetero_rl.cli.options import ConfigFiles, EndWithParent, HubAddress, Overrides
from hetero_rl.config import load_config
from hetero_rl.errors import ConfigError

__all__ = ["trainer_rank"]


def trainer_rank(
    files: ConfigFiles = None,
    hub: HubAddress = None,
    result: Annotated[Path, typer.Option("--result", help="What came of the run is written here.")] = Path(
        "result.json"
    ),
    overrides: Overrides = None,
    end_with_parent: EndWithParent = False,
) -> None:
    """Be one rank of a trainer whose hub and workers are elsewhere; RANK and WORLD_SIZE say which."""
    config = load_config(files or (), overrides or ())
    if hub is None:
        raise ConfigError("name the hub with --hub HOST:PORT")
    log_to_stderr(config, "trainer", run=config.run.name)
    quiet_libraries()
    from hetero_rl.launch.rank import run_rank

    code = run_rank(config, hub, result, end_with_parent=end_with_parent)
    from hetero_rl.trainer.ranks import end_process

    end_process(code)
