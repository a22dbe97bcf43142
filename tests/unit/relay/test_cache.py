"""A relay's blobs: fetched once, served while they arrive, never given out to the end unless they are right."""

import asyncio
import errno
import hashlib

import pytest
import pytest_asyncio

from hetero_rl.errors import DamagedError, DiskFullError, RefusedError, UnreachableError
from hetero_rl.relay import cache as module
from hetero_rl.relay.cache import RelayCache

pytestmark = pytest.mark.asyncio

CHUNK = 100


def blob(seed, size=1000):
    data = hashlib.shake_128(str(seed).encode()).digest(size)
    return hashlib.sha256(data).hexdigest(), data


class Hub:
    """Serves blobs in chunks of 100 bytes; a chunk is held back until the test lets it go."""

    def __init__(self):
        self.blobs = {}
        self.asked = []
        self.errors = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent = asyncio.Event()

    def add(self, seed, size=1000):
        digest, data = blob(seed, size)
        self.blobs[digest] = data
        return digest, data

    async def fetch_blob(self, digest, offset):
        self.asked.append((digest, offset))
        if digest not in self.blobs:
            raise RefusedError("gone", "NOT_FOUND")
        data = self.blobs[digest]
        while offset < len(data):
            if offset >= 300 and self.errors:
                raise self.errors.pop(0)
            yield data[offset : offset + CHUNK]
            offset += CHUNK
            self.sent.set()
            await self.gate.wait()


@pytest.fixture
def hub():
    return Hub()


@pytest_asyncio.fixture
async def make(hub, tmp_path):
    made = []

    def build(most_bytes=10_000):
        made.append(RelayCache(tmp_path / "relay", hub, most_bytes))
        return made[-1]

    yield build
    for cache in made:
        await cache.close()


async def read(cache, digest, offset=0):
    data = b""
    async with cache.reading(digest) as reader:
        while chunk := await reader.read(offset + len(data)):
            data += chunk
    return data


async def test_many_who_ask_at_once_cost_one_fetch(hub, make):
    cache = make()
    digest, data = hub.add("a")
    assert await asyncio.gather(*(read(cache, digest) for _ in range(20))) == [data] * 20
    assert await read(cache, digest, 990) == data[990:]
    assert hub.asked == [(digest, 0)]
    assert cache.fetched_bytes == 1000


async def test_bytes_are_passed_on_while_the_rest_is_on_its_way(hub, make):
    cache = make()
    digest, data = hub.add("a", 200)
    hub.gate.clear()
    async with cache.reading(digest) as reader:
        first = asyncio.create_task(reader.read(0))
        await hub.sent.wait()
        assert not first.done()  # the newest chunk is held back: it may be the last one
        hub.gate.set()
        assert data.startswith(await first)


async def test_a_download_goes_on_when_nobody_waits_for_it_any_more(hub, make):
    cache = make()
    digest, data = hub.add("a")
    hub.gate.clear()
    reading = asyncio.create_task(read(cache, digest))
    await hub.sent.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    hub.gate.set()
    assert await read(cache, digest) == data
    assert hub.asked == [(digest, 0)]


async def test_a_broken_download_goes_on_where_it_stopped(hub, make):
    cache = make()
    digest, data = hub.add("a")
    hub.errors = [UnreachableError("cut")]
    with pytest.raises(UnreachableError, match="cut"):
        await read(cache, digest)
    assert await read(cache, digest) == data
    assert hub.asked == [(digest, 0), (digest, 300)]


async def test_a_relay_that_was_killed_goes_on_from_its_disk(hub, make):
    digest, data = hub.add("a")
    other, other_data = hub.add("b")
    first = make()
    await read(first, other)
    hub.errors = [UnreachableError("cut")]
    with pytest.raises(UnreachableError):
        await read(first, digest)
    second = make()
    assert await read(second, digest) == data
    assert await read(second, other) == other_data
    assert hub.asked == [(other, 0), (digest, 0), (digest, 300)]


async def test_other_bytes_than_the_digest_says_are_never_given_out_to_the_end(hub, make):
    cache = make()
    digest, data = hub.add("a")
    hub.blobs[digest] = data[:-1] + b"x"
    with pytest.raises(DamagedError, match="was thrown away"):
        await read(cache, digest)
    hub.blobs[digest] = data
    assert await read(cache, digest) == data
    assert hub.asked == [(digest, 0), (digest, 0)]


async def test_a_file_that_changed_between_two_lives_is_fetched_again(hub, make, tmp_path):
    digest, data = hub.add("a")
    await read(make(), digest)
    path = tmp_path / "relay" / digest
    path.write_bytes(data[:-1] + b"x")
    assert await read(make(), digest) == data
    assert hub.asked == [(digest, 0), (digest, 0)]


async def test_what_was_used_longest_ago_goes_first(hub, make, tmp_path):
    cache = make(most_bytes=2500)
    digests = [hub.add(seed)[0] for seed in "abc"]
    for digest in (digests[0], digests[1], digests[0], digests[2]):
        await read(cache, digest)
    assert cache.kept_bytes == 2000
    assert {path.name for path in (tmp_path / "relay").iterdir()} == {digests[0], digests[2], "partial"}


async def test_what_is_being_read_stays(hub, make):
    cache = make(most_bytes=1500)
    digest, data = hub.add("a")
    other, _ = hub.add("b")
    await read(cache, digest)
    async with cache.reading(digest) as reader:
        await read(cache, other)
        assert await reader.read(0) == data
    assert await read(cache, digest) == data
    assert [asked for asked, _ in hub.asked] == [digest, other]


async def test_what_the_hub_does_not_have_leaves_nothing_behind(hub, make, tmp_path):
    cache = make()
    with pytest.raises(RefusedError, match="gone"):
        await read(cache, "0" * 64)
    assert list((tmp_path / "relay" / "partial").iterdir()) == []


@pytest.mark.parametrize("digest", ["../secret", "", "A" * 64, "0" * 63])
async def test_a_digest_never_becomes_a_path(hub, make, digest):
    with pytest.raises(RefusedError, match="not stored here"):
        await read(make(), digest)
    assert hub.asked == []


async def test_a_full_disk_is_told_as_such(hub, make, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "no space left on device")

    cache = make()
    digest, _ = hub.add("a")
    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(DiskFullError, match="smaller --cache-bytes"):
        await read(cache, digest)


async def test_closing_ends_those_who_wait(hub, make):
    cache = make()
    digest, _ = hub.add("a")
    hub.gate.clear()
    reading = asyncio.create_task(read(cache, digest))
    await hub.sent.wait()
    await cache.close()
    with pytest.raises(RefusedError) as caught:
        await reading
    assert caught.value.reason == "SHUTTING_DOWN"
