"""`hetero-rl audit`: what a run's mismatch was made of, and what the estimator did with it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hetero_rl.cli.options import RunArgument

__all__ = ["audit"]

_FAILED = 3
"""The same as `calibrate --fail-on`: told apart from an error."""


def audit(
    run: RunArgument,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML file.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")
    ] = None,
    fail_on: Annotated[
        Literal["caution", "unusable"] | None,
        typer.Option(
            "--fail-on", help="End with exit code 3 when the verdict is this or worse: a gate for CI."
        ),
    ] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold", metavar="NAME=VALUE", help="What counts as too much, such as ess_floor=0.3."
        ),
    ] = None,
) -> None:
    """Split each backend's log W into chip and staleness; works while the job runs.

    Without --html and --json it writes audit.html and audit.json into the run directory, as `hetero-rl train` does at its end.
    """
    from hetero_rl.calibration.thresholds import thresholds_from
    from hetero_rl.launch.audit import make_audit
    from hetero_rl.launch.hub_access import find_run
    from hetero_rl.reports.findings import Verdict, worst_verdict

    found = find_run(run)
    chosen = html is not None or json_file is not None
    made, written = make_audit(
        found,
        html=html if chosen else found.root / "audit.html",
        json_file=json_file if chosen else found.root / "audit.json",
        thresholds=thresholds_from(thresholds or ()),
    )
    typer.echo(made.first_line)
    for finding in made.findings:
        typer.echo(
            f"  {finding.verdict.word}: {finding.subject + ': ' if finding.subject else ''}{finding.cause}"
        )
        typer.echo(f"      next step: {finding.next_step}")
    for statement in made.statements:
        typer.echo(f"  {statement}")
    for path in written:
        typer.echo(f"wrote {path}")
    if fail_on is not None and worst_verdict(made.findings) >= Verdict[fail_on.upper()]:
        raise typer.Exit(_FAILED)
