"""gRPC for Python with nothing around it: messages that are bytes as they come, from a mapped file. What no transfer over it can undercut.

this process                              a process of its own
unary_stream, bytes as they are ◄─────  grpc.aio server: slices of the file, `CHUNK_BYTES` each
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio

from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.wire.channels import CHUNK_BYTES, bulk_options, server_options

__all__ = ["fetch_bare", "serve_bare"]

_SERVICE, _METHOD = "bench.Bare", "Fetch"


def serve_bare(file: Path, address_file: Path) -> None:
    """Sends a file to whoever calls; the main function of the process."""
    keep_freed_memory()  # as the hub does
    with file.open("rb") as source:
        pieces = list(iter(lambda: source.read(CHUNK_BYTES), b""))
    asyncio.run(_serve(pieces, address_file))


async def _serve(pieces: Sequence[bytes], address_file: Path) -> None:
    async def send(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        for piece in pieces:
            await context.write(piece)

    server = grpc.aio.server(options=server_options())
    # Without serializers, messages are bytes.
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        _METHOD: grpc.unary_stream_rpc_method_handler(send)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    scratch = address_file.with_suffix(".tmp")
    scratch.write_text(f"127.0.0.1:{port}", encoding="utf-8")
    scratch.replace(address_file)
    await server.wait_for_termination()


async def fetch_bare(address: str, times: int) -> int:
    """Fetches the file so often over one connection; returns the bytes that came."""
    came = 0
    async with grpc.aio.insecure_channel(address, options=bulk_options()) as channel:
        fetch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            f"/{_SERVICE}/{_METHOD}"
        )
        for _ in range(times):
            async for chunk in fetch(b""):
                came += len(chunk)
    return came
