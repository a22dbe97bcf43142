"""From an error to one clear message and an exit code, for every command alike."""

import typer
from typer.core import TyperGroup

from hetero_rl.errors import BackendNotFoundError, ConfigError, HeteroRLError, RefusedError, TaskError
from hetero_rl.launch.interrupts import INTERRUPTED_EXIT_CODE
from hetero_rl.launch.restart import PERMANENT_EXIT_CODE

__all__ = ["INTERRUPTED_EXIT_CODE", "ReportingGroup", "exit_code"]

FAILURE_EXIT_CODE = 1

# The same settings would be refused again.
_PERMANENT_REFUSALS = frozenset({"MODEL_MISMATCH", "SAMPLING_CONTRACT", "INCOMPATIBLE", "WRONG_RUN"})


def exit_code(error: HeteroRLError) -> int:
    """2 for what only another command line or setting can mend, 1 for everything else."""
    if isinstance(error, ConfigError | BackendNotFoundError | TaskError):
        return PERMANENT_EXIT_CODE
    if isinstance(error, RefusedError) and error.reason in _PERMANENT_REFUSALS:
        return PERMANENT_EXIT_CODE
    return FAILURE_EXIT_CODE


class ReportingGroup(TyperGroup):
    """Commands whose expected errors end as one message on stderr; a traceback only with --debug."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's context is click's
        """Runs the chosen command."""
        try:
            return super().invoke(ctx)
        except HeteroRLError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
