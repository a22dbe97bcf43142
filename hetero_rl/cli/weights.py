"""`hetero-rl weights`: what the weight versions of a run cost."""

import json
from pathlib import Path

import typer
from rich.console import Console

from hetero_rl.cli.options import JsonOutput, RunArgument

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Read what publishing weights cost.")


@app.callback()
def _weights() -> None:
    """Read what publishing weights cost."""


@app.command("log")
def log(run: RunArgument, as_json: JsonOutput = False) -> None:
    """Show coding, share of changed elements, bytes and seconds of every weight version; works while the job runs.

    Sizes come from the manifests in the hub's journal, seconds from what workers report: medians over them. Seconds of coding, and
    the entropies that the bytes are compared with, come from RUN/weights.jsonl: floor A of positions and steps, floor B the same given
    the exponents that both ends hold. The share of changed elements is known for deltas only.
    """
    from hetero_rl.hub.journal_reader import JournalReader
    from hetero_rl.launch.hub_access import find_run
    from hetero_rl.observe.weights import read_codings, version_record, weights_view

    found = find_run(run)
    codings = read_codings(found.sparsity)
    with JournalReader(found.journal) as reader:
        syncs = [row.sync for row in reader.syncs()]
        records = [
            version_record(row, manifest, syncs, codings.get(manifest.version))
            for row, manifest in reader.versions()
        ]
    if as_json:
        typer.echo(json.dumps([record.as_json() for record in records], indent=2))
    elif not records:
        typer.echo("no weight version was published yet")
    else:
        Console().print(weights_view(records))


@app.command("sparsity")
def sparsity(
    run: RunArgument,
    as_json: JsonOutput = False,
    html: Path | None = typer.Option(None, "--html", metavar="FILE", help="Write a page with plots too."),
) -> None:
    """Show which share of the served values each version changed, by layer and kind of matrix, and what repeats.

    Counts come from RUN/weights.jsonl, which the trainer writes with every delta.
    """
    from hetero_rl.launch.hub_access import find_run
    from hetero_rl.observe.sparsity import read_sparsity, sparsity_page, sparsity_view
    from hetero_rl.reports.page import render_page

    found = find_run(run)
    versions = read_sparsity(found.sparsity)
    if html is not None:
        html.write_text(render_page(sparsity_page(found.root.name, versions)), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([version.as_json() for version in versions], indent=2))
    elif not versions:
        typer.echo("no delta was published yet")
    else:
        Console().print(sparsity_view(versions))
