"""Deltas that are decoded while they arrive: nothing of it shows in what a worker ends with, whatever breaks on the way."""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError, RefusedError, UnreachableError
from hetero_rl.failpoints import VARIABLE
from hetero_rl.weights.delta import DeltaCoder
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.tensors import raw_bytes

pytestmark = pytest.mark.asyncio

PATIENCE = 90.0
RECEIVER = Path(__file__).with_name("receiver.py")


def state(step):
    """Three tensors that all change from step to step."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: (torch.randn(64, 32, generator=generator) * 0.02 + step * 2e-5).to(torch.bfloat16)
        for name in ("first", "second", "third")
    }


class HalfWay:
    """The weight service, on whose line blobs stop after their first tensor until that one was decoded; then `then` happens."""

    def __init__(self, client, decoded, first_bytes, then):
        self.get_plan, self.await_version = client.get_plan, client.await_version
        self._client, self._decoded, self._first_bytes, self._then = client, decoded, first_bytes, then

    async def fetch_blob(self, digest, offset):
        async for chunk in self._client.fetch_blob(digest, offset):
            if offset:
                yield chunk
                continue
            yield chunk[: self._first_bytes]
            # Without decoding on the way this would wait for ever.
            assert await asyncio.to_thread(self._decoded.wait, PATIENCE)
            if self._then is not None:
                raise self._then
            yield chunk[self._first_bytes :]


@pytest.fixture
def decoded(monkeypatch):
    """Is set when a tensor was decoded."""
    event, decode = threading.Event(), DeltaCoder.decode_arriving

    def noting(self, *arguments):
        yield from decode(self, *arguments)
        event.set()

    monkeypatch.setattr(DeltaCoder, "decode_arriving", noting)
    return event


def put_on(stage, line):
    """Makes a worker's blobs come over another line."""
    stage._cache._port = line


async def version_one(site):
    publisher = await site.open()
    await site.publish_state(publisher, 0, state(0))
    return publisher


async def test_a_tensor_is_decoded_before_the_bytes_of_the_next_one_come(site, client, decoded):
    publisher = await version_one(site)
    stage = site.worker(client)
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    (delta,) = await site.plan(client, held=1)
    put_on(stage, HalfWay(client, decoded, delta.tensors[0].size, None))
    await site.follow(stage, 1, state(1))
    assert decoded.is_set()
    assert stage.fallbacks == 0


async def test_a_line_that_breaks_after_the_first_tensor_costs_nothing_but_time(site, client, decoded):
    publisher = await version_one(site)
    stage = site.worker(client)
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    (delta,) = await site.plan(client, held=1)
    broken = UnreachableError("the line is gone")
    put_on(stage, HalfWay(client, decoded, delta.tensors[0].size, broken))
    await site.follow(stage, 1, state(1))
    assert stage.fallbacks == 0


async def test_a_blob_that_goes_after_the_first_tensor_leaves_nothing_half_applied(site, client, decoded):
    publisher = await version_one(site)
    stage = site.worker(client)
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    await site.follow(stage, 1, state(1))  # from now on the bytes in memory are changed in place
    await site.publish_state(publisher, 2, state(2))
    (delta,) = await site.plan(client, held=2)
    decoded.clear()
    gone = RefusedError("pruned", "NOT_FOUND")
    put_on(stage, HalfWay(client, decoded, delta.tensors[0].size, gone))
    with pytest.raises(RefusedError, match="pruned"):
        await stage.advance(site.newest)
    assert (stage.version, stage.fallbacks) == (0, 1)
    put_on(stage, client)
    await site.follow(stage, 2, state(2))


async def test_a_cancelled_worker_ends_in_the_middle_of_a_delta(site, client, decoded):
    publisher = await version_one(site)
    stage = site.worker(client)
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    (delta,) = await site.plan(client, held=1)
    put_on(stage, HalfWay(client, threading.Event(), delta.tensors[0].size, None))
    advancing = asyncio.create_task(stage.advance(site.newest))
    assert await asyncio.to_thread(decoded.wait, PATIENCE)
    advancing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await advancing
    put_on(stage, client)
    await site.follow(stage, 1, state(1))


async def run(site, **environment):
    """The receiver as a process: its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(RECEIVER), site.address, str(site.directory / "receiver"),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    printed, _ = await asyncio.wait_for(process.communicate(), 5 * PATIENCE)
    return process.returncode, printed


@pytest.mark.timeout(960)
async def test_a_receiver_killed_in_the_middle_of_a_delta_ends_bit_identical_from_its_disk(site, client):
    publisher = await version_one(site)
    await site.publish_state(publisher, 1, state(1))
    assert await run(site, **{VARIABLE: "delta.tensor_applied@2"}) == (-signal.SIGKILL, b"")
    status, printed = await run(site)
    assert status == 0
    found = json.loads(printed)
    assert found["version"] == 2
    assert found["digests"] == {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in state(1).items()}
    assert found["fetched"] == 0  # both blobs lay on its disk when it was killed


async def test_the_news_of_a_version_comes_with_the_way_to_it(site, client, monkeypatch):
    publisher = await version_one(site)
    stage = site.worker(client)
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    assert await client.await_version(1, PATIENCE) == 2
    monkeypatch.setattr(client, "_call", None)  # no question is asked any more
    staged = await stage.advance(2)
    assert staged.manifest.version == 2


async def test_a_way_from_another_version_than_is_held_is_asked_for(site, client):
    publisher = await version_one(site)
    stage = site.worker(client)
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    assert await client.await_version(0, PATIENCE) == 2  # with the way from nothing
    assert [manifest.version for manifest in await site.plan(client, held=1)] == [2]


class Early:
    """An engine's place for tensors that come before the rest."""

    def __init__(self):
        self.begun, self.taken = [], {}

    def begin(self, version):
        self.begun.append(version)
        self.taken = {}

    def take(self, name, tensor):
        assert name not in self.taken
        self.taken[name] = digest_of_bytes(raw_bytes(tensor))


async def test_an_engine_gets_each_tensor_of_the_last_version_before_all_are_there(site, client, decoded):
    publisher = await version_one(site)
    stage, early = site.worker(client), Early()
    await site.follow(stage, 0, state(0))
    unchanged = state(2) | {"second": state(0)["second"]}
    await site.publish_state(publisher, 1, state(1) | {"second": state(0)["second"]})
    await site.publish_state(publisher, 2, unchanged)
    staged = await stage.advance(site.newest, early)
    assert early.begun == [2, 3]
    assert early.taken == {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in unchanged.items()}
    assert staged.manifest.version == 3


async def test_what_came_early_of_a_damaged_version_counts_no_more_when_it_comes_again(site, client):
    publisher = await version_one(site)
    stage, early = site.worker(client), Early()
    await site.follow(stage, 0, state(0))
    await site.publish_state(publisher, 1, state(1))
    put_on(stage, LastByteFlipped(client))
    with pytest.raises(DamagedError):
        await stage.advance(site.newest, early)
    assert early.begun == [2]
    put_on(stage, client)
    await stage.advance(site.newest, early)
    assert early.begun == [2, 1, 2]  # a full copy, and the delta on it
    assert early.taken == {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in state(1).items()}


class LastByteFlipped:
    """The weight service, on whose line the last byte of every blob is another one."""

    def __init__(self, client):
        self.get_plan, self.await_version, self._client = client.get_plan, client.await_version, client

    async def fetch_blob(self, digest, offset):
        before = b""
        async for chunk in self._client.fetch_blob(digest, offset):
            if before:
                yield before
            before = bytes(chunk)
        yield before[:-1] + bytes([before[-1] ^ 1])
