"""`hetero-rl health`: one question to the health service, for probes of containers."""

from typing import Annotated

import typer

from hetero_rl.cli.options import Credentials, credential_flags
from hetero_rl.config import load_config
from hetero_rl.errors import UnreachableError

__all__ = ["health"]

_SECONDS = 5.0


def health(
    hub: Annotated[
        str, typer.Option("--hub", metavar="HOST:PORT", help="The hub to ask.")
    ] = "127.0.0.1:7077",
    credentials: Credentials = None,
) -> None:
    """End with 0 when the hub says SERVING, which means that its journal takes writes."""
    import grpc

    from hetero_rl.wire.channels import control_options, open_channel
    from hetero_rl.wire.credentials import channel_credentials
    from hetero_rl.wire.health import CHECK_METHOD, ServingStatus, decode_status

    security = load_config((), credential_flags(credentials)).security
    with open_channel(hub, channel_credentials(security), control_options()) as channel:
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK_METHOD)
        try:
            status = decode_status(check(b"", timeout=_SECONDS))
        except grpc.RpcError as error:
            raise UnreachableError(f"the hub at {hub} did not answer: {error}") from error
    typer.echo(status.name)
    if status is not ServingStatus.SERVING:
        raise typer.Exit(1)
