"""What moving weights costs: CPU time per GB of both ends, this hub, bare gRPC and Arrow Flight in turns, over loopback.

    this process                          processes of their own
      WeightClient.fetch_blob  ◄────────  hub: the blob from its disk, in chunks
      bare_grpc.fetch_bare     ◄────────  gRPC with nothing around it: the same bytes, in memory
      pyarrow.flight, do_get   ◄────────  Flight server: the same file, mapped, in batches of 1 MiB

Both ends count: user and system time of the server's process and of this one. Nothing is done with the bytes. The blob is
fetched several times in a row, as the workers of a run fetch a version; from the second time on, the hub has it in memory.
Flight has it in memory always.
"""

import asyncio
import contextlib
import hashlib
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hetero_rl.bench.bare_grpc import fetch_bare, serve_bare
from hetero_rl.bench.processes import Served, running_hub_process, served
from hetero_rl.bench.schema import Figure
from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.channels import CHUNK_BYTES
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import (
    BlobReference,
    Limits,
    ModelDigests,
    RunRequest,
    SamplingParameters,
)

__all__ = ["bulk_figures", "open_run"]

_BYTES = 64 * 2**20
_QUICK_BYTES = 4 * 2**20
_FETCHES = 8
_PAIRS = 7
_BATCH = 2**20
_GB = 1e9

Contenders = dict[str, tuple[Served, Callable[[], int]]]
"""By name: who serves, and what fetches the blob as often as the others do; gives the bytes that came."""


def bulk_figures(*, quick: bool = False) -> list[Figure]:
    """CPU seconds per GB over those of Arrow Flight and of bare gRPC; without pyarrow over the latter only."""
    if not quick:  # a quick run may share its process with whoever asked for it
        keep_freed_memory()  # as workers and relays do
    size = _QUICK_BYTES if quick else _BYTES
    pairs = 2 if quick else _PAIRS
    with tempfile.TemporaryDirectory(prefix="bench-bulk-") as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        file = directory / "blob"
        blob = _write_blob(file, size)
        hub = stack.enter_context(running_hub_process(directory / "run"))
        _upload(hub.address, blob, file)
        bare = stack.enter_context(
            served(serve_bare, file, directory / "bare", address_file=directory / "bare")
        )
        contenders: Contenders = {
            "hub": (hub, lambda: asyncio.run(_fetch(hub.address, blob.digest))),
            "grpc": (bare, lambda: asyncio.run(fetch_bare(bare.address, _FETCHES))),
        }
        if importlib.util.find_spec("pyarrow"):
            address_file = directory / "flight"
            flight = stack.enter_context(served(serve_flight, file, address_file, address_file=address_file))
            contenders["flight"] = (flight, lambda: _do_get(flight.address))
        return _figures(_measure(contenders, blob, pairs), blob)


def _measure(contenders: Contenders, blob: BlobReference, pairs: int) -> dict[str, list[float]]:
    """CPU seconds per GB of each contender, measured in turns."""
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(pairs + 1):
        for name in list(contenders) if number % 2 else reversed(list(contenders)):
            cost = _cost(*contenders[name], blob.size)
            if number:  # the first pair warms both up
                costs[name].append(cost)
    return costs


def _figures(costs: dict[str, list[float]], blob: BlobReference) -> list[Figure]:
    how = f"a blob of {blob.size:,} bytes fetched {_FETCHES} times in a row over one connection; CPU time of both ends"
    bare = f"gRPC for Python, messages of {CHUNK_BYTES:,} bytes that lie in memory and that nobody parses"
    found = [
        _figure("cpu_per_gb_over_grpc", _ratios(costs, "hub", "grpc"), "ratio", f"{bare}; {how}"),
        _figure("cpu_seconds_per_gb", costs["hub"], "s/GB", "hub and fetching client, loopback"),
    ]
    if "flight" not in costs:
        return found
    flight = f"Arrow Flight, mapped file, batches of {_BATCH:,} bytes; {how}"
    return [
        _figure("cpu_per_gb_over_flight", _ratios(costs, "hub", "flight"), "ratio", flight, target=1.3),
        _figure(
            "grpc_cpu_per_gb_over_flight", _ratios(costs, "grpc", "flight"), "ratio", f"{flight}; {bare}"
        ),
        *found,
        _figure("flight_cpu_seconds_per_gb", costs["flight"], "s/GB", "Arrow Flight, both ends, loopback"),
    ]


def _ratios(costs: dict[str, list[float]], one: str, other: str) -> list[float]:
    return [mine / theirs for mine, theirs in zip(costs[one], costs[other], strict=True)]


def _cost(server: Served, fetch: Callable[[], int], size: int) -> float:
    """CPU seconds per GB of both ends."""
    before = time.process_time() + server.cpu_seconds
    came = fetch()
    spent = time.process_time() + server.cpu_seconds - before
    if came != _FETCHES * size:
        raise AssertionError(f"{came} of {_FETCHES * size} bytes came")
    return spent / (came / _GB)


def _figure(name: str, values: list[float], unit: str, baseline: str, target: float | None = None) -> Figure:
    return Figure(
        name=name,
        value=statistics.median(values),
        unit=unit,
        low=min(values),
        high=max(values),
        baseline=baseline,
        target=target,
        relation="<=" if target is not None else None,
    )


async def _fetch(address: str, digest: str) -> int:
    came = 0
    async with WeightClient(address) as client:
        for _ in range(_FETCHES):
            async for chunk in client.fetch_blob(digest, 0):
                came += len(chunk)
    return came


def _do_get(address: str) -> int:
    from pyarrow import flight

    came = 0
    with flight.connect(address) as client:
        for _ in range(_FETCHES):
            for chunk in client.do_get(flight.Ticket(b"blob")):
                came += chunk.data.nbytes
    return came


def serve_flight(file: Path, address_file: Path) -> None:
    """Serves a file as one column of bytes; the main function of the peer's process."""
    import pyarrow as pa
    from pyarrow import flight

    mapped = pa.memory_map(str(file), "r").read_buffer()
    schema = pa.schema([("data", pa.uint8())])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, mapped.size, _BATCH):
            piece = mapped.slice(start, min(_BATCH, mapped.size - start))
            column = pa.UInt8Array.from_buffers(pa.uint8(), piece.size, [None, piece])
            yield pa.record_batch([column], schema)

    class Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
        """Answers every ticket with the file."""

        def do_get(  # ruff: ignore[no-self-use] - Flight calls it as a method
            self,
            context: object,  # ruff: ignore[unused-method-argument] - Flight passes it
            ticket: object,  # ruff: ignore[unused-method-argument] - the same
        ) -> flight.RecordBatchStream:
            """Sends the file."""
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches()))

    server = Server("grpc://127.0.0.1:0")
    scratch = address_file.with_suffix(".tmp")
    scratch.write_text(f"grpc://127.0.0.1:{server.port}", encoding="utf-8")
    scratch.replace(address_file)
    server.serve()


def _write_blob(file: Path, size: int) -> BlobReference:
    """Bytes that do not compress, made quickly; the digest says that they are what was asked for."""
    digest = hashlib.sha256()
    block = hashlib.shake_256(b"blob").digest(2**20)
    with file.open("wb") as target:
        for number in range(size // len(block)):
            piece = number.to_bytes(8, "little") + block[8:]
            target.write(piece)
            digest.update(piece)
    return BlobReference(digest.hexdigest(), size)


def _upload(address: str, blob: BlobReference, file: Path) -> None:
    with TrainingClient(address) as trainer, file.open("rb") as source:
        open_run(trainer)
        trainer.put_blob(blob, iter(lambda: source.read(2 * 2**20), b""))


def open_run(trainer: TrainingClient) -> None:
    """Opens a run in which nothing is trained."""
    trainer.open_run(
        RunRequest(
            run_id="bench",
            groups_per_step=1,
            max_lag=1,
            total_steps=1,
            model_digests=ModelDigests(config="0" * 64, tokenizer="0" * 64),
            model_files=(),
            sampling=SamplingParameters(max_new_tokens=1, stop_token_ids=()),
            limits=Limits(
                max_message_bytes=8 * 2**20,
                max_prompt_tokens=1,
                max_completion_tokens=1,
                max_group_size=1,
                vocabulary_size=2,
            ),
            config_json="{}",
            software_version="0",
        )
    )
