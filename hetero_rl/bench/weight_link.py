"""A weight version over a slow line: real hub, real worker code, and between them 100 Mbit/s with 50 ms there and back.

    this process                                   processes of their own
      publishes (TrainingClient) ────────────────►  hub
      WeightStage: plan, blobs, decode, verify ◄──  line ◄── hub
      then the load in place: the only pause

The wall time is that of the whole sync, from asking for the plan to the end of the load; the bound is what the coded bytes
and one round trip take. Versions go back and forth between the two ends of one update.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
import types
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch

from hetero_rl.bench.paced_link import Pace, serve_paced
from hetero_rl.bench.processes import running_hub_process, served
from hetero_rl.bench.schema import Figure
from hetero_rl.bench.weight_bulk import open_run
from hetero_rl.bench.weight_updates import Update
from hetero_rl.weights.full import encode_full, stage_full
from hetero_rl.weights.held import HeldWeights, encode_delta
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import BlobReference, WeightManifest
from hetero_rl.wire.ports import RolloutPort
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.session import Session
from hetero_rl.worker.weight_stage import WeightStage

__all__ = ["link_figures"]

_PACE = Pace(bytes_per_second=100e6 / 8, round_trip_seconds=0.05)
_PACING = Pacing(first_delay=0.05, longest_delay=0.5, patience=120.0)
_SYNCS = 6
_WORKER = "worker"


@dataclass(frozen=True, slots=True)
class _Sync:
    """One version: its bytes, and seconds."""

    size: int
    wall: float
    fetch: float
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
            syncs = asyncio.run(
                _follow(sender, hub.address, paced.address, directory / _WORKER, 2 if quick else _SYNCS)
            )
    return _figures(syncs, update)


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
                f"tensor.{number}": torch.from_numpy(pair[end].view("int16")).view(torch.bfloat16)
                for number, pair in enumerate(update.pairs)
            }
            for end in (0, 1)
        )
        self._version = 1
        full = encode_full(self._ends[0], directory, version=1, step=0)
        self._store(full.manifest, {blob.reference: blob.path for blob in full.blobs})
        self._held = HeldWeights.from_staged(stage_full(full.manifest, [blob.path for blob in full.blobs]))

    def publish(self) -> int:
        """Publishes the next version as a delta; gives its coded bytes."""
        end = self._ends[self._version % 2]
        self._version += 1
        self._counter += 1
        delta = encode_delta(self._held, end, self._directory, version=self._version, step=self._version - 1)
        self._store(delta.manifest, {blob.reference: blob.path for blob in delta.blobs})
        self._held.apply_delta(delta.manifest, [blob.path for blob in delta.blobs])
        return sum(blob.reference.size for blob in delta.blobs)

    def _store(self, manifest: WeightManifest, blobs: Mapping[BlobReference, Path]) -> None:
        for blob, path in blobs.items():
            with path.open("rb") as source:
                self._trainer.put_blob(blob, iter(lambda: source.read(2**20), b""))
        self._trainer.publish_version(manifest)


async def _follow(sender: _Sender, hub: str, line: str, directory: Path, count: int) -> list[_Sync]:
    async with _stage(hub, directory) as (near, _):  # the first copy does not go over the slow line
        first = await near.advance(1)
    if first is None:
        raise AssertionError("the hub has no first version")
    engine = {name: tensor.clone() for name, tensor in first.tensors()}
    syncs = []
    async with _stage(line, directory) as (stage, _):
        stage.held = first
        for number in range(count + 1):
            size = await asyncio.to_thread(sender.publish)
            sync = await _sync(stage, engine, size, stage.version + 1)
            if number:  # the first one opens the connection
                syncs.append(sync)
    return syncs


async def _sync(stage: WeightStage, engine: Mapping[str, torch.Tensor], size: int, version: int) -> _Sync:
    started = time.perf_counter()
    staged = await stage.advance(version)
    if staged is None or staged.manifest.version != version:
        raise AssertionError(f"version {version} did not come")
    fetched = time.perf_counter()
    for name, tensor in staged.tensors():
        engine[name].copy_(tensor)
    loaded = time.perf_counter()
    stage.keep(staged)
    return _Sync(size, loaded - started, stage.progress.fetch, loaded - fetched)


@contextlib.asynccontextmanager
async def _stage(address: str, directory: Path) -> AsyncGenerator[tuple[WeightStage, WeightClient]]:
    """The part of a worker that gets weights; it needs no more of a session than these."""
    async with WeightClient(address) as client:
        link = Link(cast("RolloutPort", None), _PACING)
        session = types.SimpleNamespace(link=link, weights=client, pacing=_PACING)
        cache = BlobCache(directory, client, link)
        yield WeightStage(cast("Session", session), cache), client


def _figures(syncs: list[_Sync], update: Update) -> list[Figure]:
    size = round(statistics.median(sync.size for sync in syncs))
    line = (
        f"{_PACE.bytes_per_second * 8 / 1e6:g} Mbit/s, {_PACE.round_trip_seconds * 1e3:g} ms there and back; {update.name}, "
        f"{update.density:.2%} changed, {size:,} bytes"
    )
    trips = 2 * _PACE.round_trip_seconds
    return [
        _figure(
            "sync_wall_over_bound",
            [sync.wall / _PACE.bound(sync.size) for sync in syncs],
            f"coded bytes over the pace and one round trip; {line}",
            1.15,
        ),
        _figure(
            "fetch_wall_over_bound",
            [sync.fetch / _PACE.bound(sync.size) for sync in syncs],
            f"the same bound; plan and download only; {line}",
        ),
        _figure(
            "goodput_over_pace",
            [sync.size / (sync.fetch - trips) / _PACE.bytes_per_second for sync in syncs],
            f"the pace; coded bytes by the time of plan and download without their two round trips; {line}",
            0.95,
            at_least=True,
        ),
        _figure(
            "pause_share",
            [sync.pause / sync.wall for sync in syncs],
            f"wall time of the sync; the pause copies every tensor in place; {line}",
            0.05,
        ),
    ]


def _figure(
    name: str, values: list[float], baseline: str, target: float | None = None, *, at_least: bool = False
) -> Figure:
    direction: Literal["<=", ">="] = ">=" if at_least else "<="
    return Figure(
        name=name, value=statistics.median(values), unit="ratio", low=min(values), high=max(values),
        baseline=baseline, target=target, relation=None if target is None else direction,
    )  # fmt: skip
