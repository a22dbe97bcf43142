"""Weights over a line of a given rate and delay that is a process of its own, and dies when it is told to."""

import asyncio
import contextlib
import hashlib

import pytest
import pytest_asyncio

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.bench.paced_link import Pace, serve_paced
from hetero_rl.bench.processes import served
from hetero_rl.hub.handlers.context import HubSettings
from hetero_rl.hub.local_blobs import LocalBlobStore
from hetero_rl.hub.server import running_hub
from hetero_rl.hub.servicers.weights import WeightServicer
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import BlobReference
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing

pytestmark = pytest.mark.asyncio

SLOW = Pace(bytes_per_second=2e6, round_trip_seconds=0.02)
FAST = Pace(bytes_per_second=200e6, round_trip_seconds=0.002)
DATA = hashlib.shake_256(b"slow line").digest(2**20) * 8
BLOB = BlobReference(hashlib.sha256(DATA).hexdigest(), len(DATA))


@pytest.fixture
def line(tmp_path):
    """Starts a line to an address; it is a context manager that gives its own."""
    numbers = iter(range(10))

    def started(target, pace):
        file = tmp_path / f"line-{next(numbers)}"
        return served(serve_paced, target, pace, file, address_file=file)

    return started


@pytest.fixture
def fetches(monkeypatch):
    """Digests that the hubs started from now on are asked for by themselves."""
    asked, fetch = [], WeightServicer.FetchBlob

    async def noting(self, request, context):
        asked.append(request.digest)
        return await fetch(self, request, context)

    monkeypatch.setattr(WeightServicer, "FetchBlob", noting)
    return asked


async def test_a_delta_follows_its_news_over_the_line_and_nothing_else_is_asked(
    fetches, start_site, line, tmp_path
):
    async with start_site(tmp_path) as site:
        publisher = await site.open()
        await site.publish(publisher, 0)
        with line(site.address, SLOW) as slow:
            async with WeightClient(slow.address) as client:
                stage = site.worker(client)
                await site.follow(stage, 0)
                fetched_one_by_one = len(fetches)
                waiting = asyncio.create_task(client.await_version(1, 30.0))
                await site.publish(publisher, 1)
                assert await waiting == 2
                staged = await stage.advance(2)
        assert staged.manifest.step == 1
        assert dict(staged.tensors())["embed"].equal(site.state_after(1)["embed"])
        assert len(fetches) == fetched_one_by_one == 1
        assert stage.fallbacks == 0


class DyingLine:
    """Blobs over a line that dies after two chunks, and then over another one."""

    def __init__(self, first, second, die):
        self._clients, self._die = [first, second], die
        self.offsets = []

    async def fetch_blob(self, digest, offset):
        client = self._clients[len(self.offsets)]
        self.offsets.append(offset)
        chunks = 0
        async for chunk in client.fetch_blob(digest, offset):
            yield chunk
            chunks += 1
            if chunks == 2 and len(self.offsets) == 1:
                self._die()


@pytest_asyncio.fixture
async def hub(tmp_path):
    """A hub that has the blob; gives its address."""
    blobs = LocalBlobStore(tmp_path / "blobs")
    with contextlib.closing(blobs.open_upload(BLOB)) as upload:
        upload.write(0, DATA)
        upload.finish()
    async with running_hub(SqliteStore(tmp_path / "journal.sqlite"), blobs, HubSettings()) as hub:
        yield hub.address


async def test_a_download_whose_line_dies_in_the_middle_goes_on_over_another_one(hub, line, tmp_path):
    with contextlib.ExitStack() as first, line(hub, FAST) as second:
        slow = first.enter_context(line(hub, SLOW))
        async with WeightClient(slow.address) as near, WeightClient(second.address) as far:
            port = DyingLine(near, far, first.close)
            pacing = Pacing(first_delay=0.001, longest_delay=0.002, patience=90.0)
            cache = BlobCache(tmp_path / "cache", port, Link(None, pacing))
            path = await cache.fetch(BLOB)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == BLOB.digest
    start, middle = port.offsets
    assert start == 0 < middle < len(DATA)
    assert cache.fetched_bytes == len(DATA), "no byte came twice"
