"""`hetero-rl samples`: read what the model wrote, and where backend and trainer disagree."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from hetero_rl.cli.options import JsonOutput, RunArgument
from hetero_rl.launch.hub_access import find_run
from hetero_rl.launch.rundir import RunDirectory

__all__ = ["samples"]

CONSIDERED = 5000
"""Newest completions among which `--worst` looks."""


def samples(
    run: RunArgument,
    step: Annotated[int | None, typer.Option("--step", min=1, help="Only completions of this step.")] = None,
    worst: Annotated[
        bool, typer.Option("--worst", help="Those with the largest |log mu - log pi| of a token first.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to show.")] = 8,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Held-out completions instead of training ones.")
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show every token with its log-probabilities.")
    ] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show prompts, completions, rewards and log-probability gaps; works while the job runs.

    Tokens are coloured by |log mu - log pi|: green below 0.02, yellow below 0.1, red below 0.5, white on red above.
    """
    from hetero_rl.hub.journal_reader import JournalReader
    from hetero_rl.observe.samples import readable, sample_record, sample_view, worst_first
    from hetero_rl.wire.messages import Purpose

    found = find_run(run)
    purpose = Purpose.EVALUATION if evaluation else Purpose.TRAIN
    with JournalReader(found.journal) as reader:
        rows = list(reader.samples(purpose=purpose, step=step, limit=CONSIDERED if worst else limit))
    rows = worst_first(rows)[:limit] if worst else rows
    decode = _decoder(found) if rows else str
    chosen = [readable(row, decode) for row in rows]
    if as_json:
        typer.echo(json.dumps([sample_record(item) for item in chosen], indent=2))
        return
    if not chosen:
        typer.echo("no completion with tokens is kept" + (f" for step {step}" if step else " yet"))
    console = Console()
    for item in chosen:
        console.print(sample_view(item, with_tokens=tokens))


def _decoder(run: RunDirectory) -> Callable[[Sequence[int]], str]:
    from hetero_rl.launch.run_model import load_tokenizer, model_directory_of

    tokenizer = load_tokenizer(model_directory_of(run))
    # Spaces before punctuation are what was sampled; a tidied text would not be.
    return lambda token_ids: str(tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))
