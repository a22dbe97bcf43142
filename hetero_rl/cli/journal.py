"""`hetero-rl journal`: whether a run's journal is as it was written, and what can be done when it is not."""

from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.options import RunArgument
from hetero_rl.errors import StorageError
from hetero_rl.launch.rundir import RunDirectory

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Check or repair the journal of a run.")


@app.callback()
def _journal() -> None:
    """Check or repair the journal of a run."""


@app.command("check")
def check(run: RunArgument) -> None:
    """Read a journal through: its pages, its indexes, and the checksum of every row; works while the job runs.

    Ends with 1, naming what is damaged, when it is not as it was written. About half a second per 100,000 completions.
    """
    from hetero_rl.hub.journal_reader import JournalReader
    from hetero_rl.launch.hub_access import find_run

    found = find_run(run)
    problem = _log_problem(found) if found.journal.exists() else ""
    with JournalReader(found.journal) as reader:
        damage = [*([problem] if problem else []), *reader.damage()]
    for line in damage:
        typer.echo(line)
    typer.echo(
        f"{found.journal}: {len(damage)} things are damaged" if damage else f"{found.journal} is sound"
    )
    if damage:
        raise typer.Exit(1)


def _log_problem(run: RunDirectory) -> str:
    """What cannot be read of the write-ahead log that a stopped hub left."""
    from hetero_rl.hub.lock import RunLock
    from hetero_rl.hub.stores.log_check import log_problem

    try:
        with RunLock(run.hub):
            return log_problem(run.journal)
    except StorageError:
        return ""  # a hub runs: it has looked at its log, and is writing it


@app.command("repair")
def repair(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory; its hub must be stopped.")],
) -> None:
    """Make a damaged journal usable again where what is lost can be made again.

    Takes over what is readable of the write-ahead log, makes indexes anew, and removes damaged leases and workers. The files as they
    were go to RUN/hub/damaged. Then continue the run from its last checkpoint with `hetero-rl train RUN/config.json --resume`.
    """
    from hetero_rl.hub.journal_repair import repair_journal
    from hetero_rl.launch.hub_access import find_run

    done = repair_journal(find_run(run).hub)
    for line in done:
        typer.echo(line)
    typer.echo("repaired" if done else "nothing is damaged; nothing was changed")
