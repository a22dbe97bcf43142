"""`hetero-rl export`: a checkpoint as a Hugging Face directory."""

from pathlib import Path
from typing import Annotated

import typer

from hetero_rl.cli.logs import quiet_libraries
from hetero_rl.cli.options import RunArgument
from hetero_rl.config import load_config
from hetero_rl.launch.hub_access import find_run
from hetero_rl.observe.tables import short_number

__all__ = ["export"]


def export(
    run: RunArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that does not exist yet.")],
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Step of the checkpoint; the newest if not given.")
    ] = None,
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Write the adapters of trainer.lora alone, for peft.")
    ] = False,
) -> None:
    """Write a checkpoint as a Hugging Face directory that transformers and vLLM load as it is."""
    from hetero_rl.trainer.export import choose_checkpoint, export_adapters, export_model

    quiet_libraries()

    found = find_run(run)
    config = load_config([found.config])
    checkpoint = choose_checkpoint(found.checkpoints, step)
    if adapters:
        size = export_adapters(checkpoint, directory, config.trainer.lora, config.model.path)
        typer.echo(f"{directory}: {checkpoint.name}, {short_number(size)}B of adapters in float32")
        return
    size = export_model(checkpoint, directory, config.weights.serving_dtype)
    typer.echo(
        f"{directory}: {checkpoint.name} in {config.weights.serving_dtype}, {short_number(size)}B of weights, "
        "loaded back and compared"
    )
