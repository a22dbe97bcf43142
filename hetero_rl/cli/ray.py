"""`hetero-rl ray node`: a node of a Ray cluster that a run is placed on, kept running."""

from typing import Annotated

import typer

from hetero_rl.cli.logs import log_to_stderr
from hetero_rl.config import Config

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Nodes of a Ray cluster, for launcher.kind = ray.")


@app.callback()
def _ray() -> None:
    """Nodes of a Ray cluster, for launcher.kind = ray."""


@app.command()
def node(
    head: Annotated[bool, typer.Option("--head", help="Begin a cluster; other nodes join it.")] = False,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="The head of the cluster to join.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="Vendor of this node's devices; the first with a device if not given."
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", min=0, help="Devices to offer; those that the backend finds if not given."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", min=1, help="CPUs to offer; all if not given.")
    ] = None,
    node_ip: Annotated[
        str | None, typer.Option("--node-ip", help="Address that other nodes reach this one by.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of a head.")] = 6379,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, start nothing.")] = False,
) -> None:
    """Keep a node of a Ray cluster running until Ctrl-C or SIGTERM, with the label and resource of its vendor.

    A node that was cut off for longer than the head waits ends itself and never rejoins: it is started again here.
    """
    from hetero_rl.launch.ray_node import NodeOptions, keep_node, node_command

    options = NodeOptions(
        head=head, address=address, backend=backend, devices=devices, cpus=cpus, node_ip=node_ip, port=port
    )
    if dry_run:
        typer.echo(" ".join(node_command(options)))
        return
    log_to_stderr(Config(), "ray-node")
    keep_node(options)
