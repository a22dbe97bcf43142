"""A worker without an engine: real joins, leases, heartbeats and the real submit loop, completions out of a hat.

    work ──► one submission for each completion ──► outbox ──► submit_loop ──► bad line ──► hub
    heartbeat_loop ──► hub every interval
    a new version ──► plan ──► BlobCache ──► every byte checked, where `Terms.cache` names a directory

Each completion is a submission of its own, so that groups come together from parts that are resent, lost and doubled.
"""

import asyncio
import dataclasses
import random
from pathlib import Path

from hetero_rl.bench.engineless import join_without_engine
from hetero_rl.config.tree import SecurityConfig
from hetero_rl.errors import DamagedError, DiskFullError, RefusedError
from hetero_rl.weights.digests import check_blob_file
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.columns import Float32Bytes, Int32Bytes
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import (
    FinishReason,
    NoWorkReason,
    TrajectoryBatch,
    VersionSpan,
    WeightEncoding,
)
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.heartbeat_loop import heartbeat_loop
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.submit_loop import submit_loop
from tests.chaos.bad_line import bad_line

__all__ = ["Terms", "completion", "joined", "run_fast_worker"]

_TOKENS = 4


_QUICK = Pacing(first_delay=0.02, longest_delay=0.5)


@dataclasses.dataclass(frozen=True)
class Terms:
    """How a worker works."""

    loss: float = 0.1
    """Share of lost replies."""
    capacity: int = 512
    """Completions that it takes at once."""
    pause: float = 0.0
    """Seconds between two leases."""
    pacing: Pacing = _QUICK
    """Of repeats; the product's own waits longer."""
    credentials: str = ""
    """Bundle of its own; plaintext without."""
    cache: str = ""
    """Directory in which every version's weights are downloaded and checked; without it none are."""


def run_fast_worker(address, name, seed, terms, history):
    """Works until the run is complete."""
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    asyncio.run(_work(address, name, draw, terms, history))


async def _work(address, name, draw, terms, history):
    client_class = bad_line(history, draw, terms.loss)
    credentials = channel_credentials(SecurityConfig(credentials=terms.credentials or None))
    async with client_class(address, credentials) as client, WeightClient(address, credentials) as weights:
        session = await joined(client, weights, name, draw, terms)
        loops = [asyncio.create_task(submit_loop(session)), asyncio.create_task(heartbeat_loop(session))]
        weights_of = _Weights(session, Path(terms.cache), history) if terms.cache else None
        working = asyncio.create_task(_generate(session, draw, terms.pause, weights_of))
        await asyncio.wait([working, *loops], return_when=asyncio.FIRST_COMPLETED)
        for task in (*loops, working):
            if task.done():
                task.result()
            task.cancel()


async def joined(client, weights, name, draw, terms):
    """The session of a worker that has joined."""
    return await join_without_engine(
        client,
        weights,
        name=name,
        capacity=terms.capacity,
        boot_id=f"{draw.getrandbits(64):016x}",
        pacing=terms.pacing,
    )


class _Weights:
    """What a worker does for new weights, without the model: the real downloads and their checks."""

    def __init__(self, session, directory, history):
        self.session = session
        self.cache = BlobCache(directory, session.weights, session.link)
        self.history = history
        self.held = 0

    async def advance(self):
        """Downloads what the hub has to offer; raises when other bytes came than the manifest names."""
        session = self.session
        try:
            plan = await session.link.repeat(
                "plan of weights",
                lambda: session.weights.get_plan(
                    held_version=0, wanted_version=0, encodings=(WeightEncoding.FULL_RAW,)
                ),
            )
            manifest = plan[-1]
            paths = await self.cache.fetch_all(manifest.blobs)
        except RefusedError as error:
            if error.reason not in {"NOT_FOUND", "UNKNOWN_VERSION"}:
                raise
            return  # a newer version took its place meanwhile
        except DiskFullError as error:
            self.history.note("download failed", error=str(error))
            await asyncio.sleep(0.1)
            return
        for blob in manifest.blobs:
            try:
                check_blob_file(paths[blob.digest], blob)
            except DamagedError as error:
                self.history.note("damaged", version=manifest.version, error=str(error))
                raise
        self.cache.keep_only(manifest.blobs)
        self.held = manifest.version
        self.history.note("fetched", version=manifest.version, size=sum(blob.size for blob in manifest.blobs))


async def _generate(session, draw, pause, weights):
    version = 0
    while True:
        grant = await session.link.call(
            "lease",
            lambda identity, version=version: session.link.port.lease_work(
                identity, loaded_weight_version=version, free_sequences=session.capacity, wait=0.5
            ),
        )
        if grant.no_work_reason in {NoWorkReason.RUN_COMPLETE, NoWorkReason.DRAINING}:
            return
        for lease in grant.leases:
            session.hand_in(
                lease.lease_id,
                [
                    completion(lease.work, index, version, session, draw)
                    for index in lease.work.sample_indices
                ],
            )
        version = grant.latest_weight_version
        if weights is not None and weights.held < version:
            await weights.advance()
            version = weights.held
        # The outbox is emptied before more is asked for, as an engine that is full would not ask either.
        await session.outbox.join()
        await asyncio.sleep(pause)


def completion(work, index, version, session, draw):
    """A completion out of a hat."""
    numbers = draw.randbytes(_TOKENS)
    return TrajectoryBatch(
        group_id=work.group_id,
        sample_indices=(index,),
        lengths=(_TOKENS,),
        token_ids=Int32Bytes(b"".join(bytes((number % 16, 0, 0, 0)) for number in numbers)),
        # -1.xxx: any exponent byte of -1 with random low bits.
        log_probs=Float32Bytes(b"".join(draw.randbytes(2) + b"\x80\xbf" for _ in range(_TOKENS))),
        version_spans=(VersionSpan(0, 0, _TOKENS, version),),
        finish_reasons=(FinishReason.LENGTH,),
        numerics_id=session.numerics_id,
        generation_seconds=0.0,
    )
