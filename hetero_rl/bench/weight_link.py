"""A weight version over a slow line: real hub, real worker code, and between them 100 Mbit/s with 50 ms there and back.

    this process                                   processes of their own
      publishes (TrainingClient) ────────────────►  hub
      await_version: news, the way, first blob ◄──  line ◄── hub
      WeightStage: the blob ∥ decode ∥ verify
      then the engine's new weights are made ready; their exchange is the only pause

The wall time is that of the whole sync, from telling the hub of the version to the end of the load; the bound is what the coded
bytes and one round trip take. Goodput is that between the first chunk and the last. Versions go back and forth between the two ends of one update.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
import types
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch

from hetero_rl.bench.paced_link import Pace, serve_paced
from hetero_rl.bench.plain_line import plain_walls
from hetero_rl.bench.processes import running_hub_process, served
from hetero_rl.bench.schema import Figure
from hetero_rl.bench.weight_bulk import open_run
from hetero_rl.bench.weight_updates import Update
from hetero_rl.weights.changes import encode_delta
from hetero_rl.weights.full import encode_full, stage_full
from hetero_rl.weights.held import HeldWeights
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import BlobReference
from hetero_rl.wire.ports import RolloutPort
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.engines.transformers.model import WeightTable
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.session import Session
from hetero_rl.worker.weight_stage import ENCODINGS, WeightStage

__all__ = ["Sync", "link_figures", "sync_figures"]

_PACE = Pace(bytes_per_second=100e6 / 8, round_trip_seconds=0.05)
_PACING = Pacing(first_delay=0.05, longest_delay=0.5, patience=120.0)
_SYNCS = 6
_NEWS_SECONDS = 30.0
_WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Sync:
    """One version: its bytes, and seconds."""

    size: int
    wall: float
    arrived: float
    """From telling the hub to the last byte."""
    goodput: float
    """Bytes per second."""
    pause: float


def link_figures(update: Update, *, quick: bool = False) -> list[Figure]:
    """Wall time over its bound, goodput over the pace, and the share of the pause.

    Args:
        update: What changes from version to version.
        quick: Take seconds; the figures prove nothing.
    """
    with tempfile.TemporaryDirectory(prefix="bench-link-") as scratch:
        directory = Path(scratch)
        line = directory / "line"
        with (
            running_hub_process(directory / "run") as hub,
            served(serve_paced, hub.address, _PACE, line, address_file=line) as paced,
            TrainingClient(hub.address) as trainer,
        ):
            open_run(trainer)
            sender = _Sender(trainer, update, directory / "sender")
            count = 2 if quick else _SYNCS
            syncs = asyncio.run(_follow(sender, hub.address, paced.address, directory / _WORKER, count))
        size = _median_size(syncs)
        return [*sync_figures(syncs, update), _plain_figure(plain_walls(_PACE, size, count, directory), size)]


class _Sender:
    """Publishes the two ends of an update in turns."""

    def __init__(self, trainer: TrainingClient, update: Update, directory: Path) -> None:
        self._trainer = trainer
        self._directory = directory
        # Makes every delta a blob of its own: one that came before would not be fetched again.
        self._counter = torch.zeros(1, dtype=torch.int32)
        self._ends = tuple(
            {"counter": self._counter}
            | {
                f"tensor_{number}": torch.from_numpy(pair[end].view("int16")).view(torch.bfloat16)
                for number, pair in enumerate(update.pairs)
            }
            for end in (0, 1)
        )
        self._version = 1
        full = encode_full(self._ends[0], directory, version=1, step=0)
        self._upload({blob.reference: blob.path for blob in full.blobs})
        trainer.publish_version(full.manifest)
        self._held = HeldWeights.from_staged(stage_full(full.manifest, [blob.path for blob in full.blobs]))

    def publish(self) -> tuple[int, float]:
        """Publishes the next version as a delta; gives its coded bytes, and when the hub was told of it."""
        end = self._ends[self._version % 2]
        self._version += 1
        self._counter += 1
        delta = encode_delta(self._held, end, self._directory, version=self._version, step=self._version - 1)
        self._upload({blob.reference: blob.path for blob in delta.blobs})
        # A trainer goes on behind the publication, on another machine than the worker.
        self._held.apply_delta(delta.manifest, [blob.path for blob in delta.blobs])
        told = time.perf_counter()
        self._trainer.publish_version(delta.manifest)
        return sum(blob.reference.size for blob in delta.blobs), told

    def _upload(self, blobs: Mapping[BlobReference, Path]) -> None:
        for blob, path in blobs.items():
            with path.open("rb") as source:
                self._trainer.put_blob(blob, iter(lambda: source.read(2**20), b""))


async def _follow(sender: _Sender, hub: str, line: str, directory: Path, count: int) -> list[Sync]:
    async with _stage(hub, directory) as (near, _, _):  # the first copy does not go over the slow line
        first = await near.advance(1)
    if first is None:
        raise AssertionError("the hub has no first version")
    engine = WeightTable(_Model(first.tensors()))
    syncs = []
    async with _stage(line, directory) as (stage, client, chunks):
        stage.held = first  # its file stays: another stage fetched it
        await client.get_plan(held_version=1, wanted_version=0, encodings=ENCODINGS)  # opens the connection
        for number in range(count + 1):
            chunks.clear()
            sync = await _sync(stage, client, engine, sender, chunks)
            if number:  # the first one copies every page of the files into memory
                syncs.append(sync)
    return syncs


async def _sync(
    stage: WeightStage, client: WeightClient, engine: WeightTable, sender: _Sender, chunks: "_Chunks"
) -> Sync:
    """One version: the worker waits for news of it, as workers do, and it is published."""
    version = stage.version + 1
    waiting = asyncio.create_task(_news(client, stage.version))
    size, told = await asyncio.to_thread(sender.publish)
    staged = await stage.advance(await waiting, engine)
    if staged is None or staged.manifest.version != version:
        raise AssertionError(f"version {version} did not come")
    new = await asyncio.to_thread(engine.new_weights, staged.tensors(), version)
    pausing = time.perf_counter()
    engine.replace(new)
    loaded = time.perf_counter()
    stage.keep(staged)
    (first, begun), (_, ended) = chunks[0], chunks[-1]
    return Sync(size, loaded - told, ended - told, (size - first) / (ended - begun), loaded - pausing)


_Chunks = list[tuple[int, float]]
"""Bytes of each chunk of a blob, and when it came."""


class _Timed:
    """A `WeightPort` that notes when chunks come."""

    def __init__(self, client: WeightClient, chunks: _Chunks) -> None:
        self.get_plan = client.get_plan
        self.await_version = client.await_version
        self._client = client
        self._chunks = chunks

    async def fetch_blob(self, digest: str, offset: int) -> AsyncGenerator[bytes | memoryview]:
        async for chunk in self._client.fetch_blob(digest, offset):
            self._chunks.append((len(chunk), time.perf_counter()))
            yield chunk


class _Model(torch.nn.Module):
    """Weights as the engine on the CPU has them."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().__init__()
        for name, tensor in tensors:
            self.register_parameter(name, torch.nn.Parameter(tensor.clone(), requires_grad=False))


async def _news(client: WeightClient, version: int) -> int:
    """The latest version, once it is above the given one."""
    while (latest := await client.await_version(version, _NEWS_SECONDS)) <= version:
        pass
    return latest


@contextlib.asynccontextmanager
async def _stage(address: str, directory: Path) -> AsyncGenerator[tuple[WeightStage, WeightClient, _Chunks]]:
    """The part of a worker that gets weights; it needs no more of a session than these."""
    async with WeightClient(address) as client:
        link = Link(cast("RolloutPort", None), _PACING)
        session = types.SimpleNamespace(link=link, weights=client, pacing=_PACING)
        chunks: _Chunks = []
        cache = BlobCache(directory, _Timed(client, chunks), link)
        yield WeightStage(cast("Session", session), cache), client, chunks


def sync_figures(syncs: list[Sync], update: Update) -> list[Figure]:
    """Medians over syncs of one update.

    Args:
        syncs: At least one.
        update: What each of them carried.
    """
    size = _median_size(syncs)
    line = (
        f"{_PACE.bytes_per_second * 8 / 1e6:g} Mbit/s, {_PACE.round_trip_seconds * 1e3:g} ms there and back; {update.name}, "
        f"{update.density:.2%} changed, {size:,} bytes"
    )
    return [
        _figure(
            "sync_wall_over_bound",
            [sync.wall / _PACE.bound(sync.size) for sync in syncs],
            f"coded bytes over the pace and one round trip; from telling the hub of the version to the end of the load; {line}",
            1.15,
        ),
        _figure(
            "arrival_wall_over_bound",
            [sync.arrived / _PACE.bound(sync.size) for sync in syncs],
            f"the same bound; from telling the hub of the version to the last byte; {line}",
        ),
        _figure(
            "goodput_over_pace",
            [sync.goodput / _PACE.bytes_per_second for sync in syncs],
            f"the pace; from the first chunk to the last; {line}",
            0.95,
            at_least=True,
        ),
        _figure(
            "pause_share",
            [sync.pause / sync.wall for sync in syncs],
            f"wall time of the sync; the pause exchanges every tensor for one that was copied before; {line}",
            0.05,
        ),
    ]


def _plain_figure(walls: list[float], size: int) -> Figure:
    return _figure(
        "plain_wall_over_bound",
        [wall / _PACE.bound(size) for wall in walls],
        f"the same bound; as many bytes over a plain TCP connection through the same line; {size:,} bytes",
    )


def _median_size(syncs: list[Sync]) -> int:
    return round(statistics.median(sync.size for sync in syncs))


def _figure(
    name: str, values: list[float], baseline: str, target: float | None = None, *, at_least: bool = False
) -> Figure:
    direction: Literal["<=", ">="] = ">=" if at_least else "<="
    return Figure(
        name=name, value=statistics.median(values), unit="ratio", low=min(values), high=max(values),
        baseline=baseline, target=target, relation=None if target is None else direction,
    )  # fmt: skip
