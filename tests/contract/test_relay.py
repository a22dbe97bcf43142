"""Workers behind a relay: over real connections, and over none when it is gone."""

import asyncio
import hashlib

import pytest
import pytest_asyncio

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.deploy.authority import Authority
from hetero_rl.errors import ConfigError, RefusedError, StorageError, UnreachableError
from hetero_rl.relay.server import running_relay
from hetero_rl.wire.bundle import write_bundle
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import BlobReference, DataType, TensorEntry, WeightEncoding, WeightManifest
from hetero_rl.wire.roles import Role
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.relayed import RelayedWeights
from hetero_rl.worker.resend import Pacing

pytestmark = pytest.mark.asyncio

DATA = hashlib.shake_128(b"weights").digest(5 * 2**20)
BLOB = BlobReference(hashlib.sha256(DATA).hexdigest(), len(DATA))
MANIFEST = WeightManifest(
    version=7,
    step=6,
    encoding=WeightEncoding.FULL_RAW,
    tensors=(
        TensorEntry(
            name="t",
            data_type=DataType.UINT8,
            shape=(len(DATA),),
            digest=BLOB.digest,
            blob_index=0,
            offset=0,
            size=len(DATA),
        ),
    ),
    blobs=(BLOB,),
    state_digest="0" * 64,
)


class Hub:
    """A hub with one version, and a count of what crossed the slow line."""

    def __init__(self):
        self.sent = 0
        self.fetches = []

    async def get_plan(self, *, held_version, wanted_version, encodings):
        if WeightEncoding.FULL_RAW not in encodings:
            raise RefusedError("no way with these encodings", "INCOMPATIBLE")
        return () if held_version == 7 else (MANIFEST,)

    async def await_version(self, after_version, wait):
        if after_version >= 7:
            await asyncio.sleep(wait)
        return 7

    async def fetch_blob(self, digest, offset):
        self.fetches.append(offset)
        if digest != BLOB.digest:
            raise RefusedError(f"blob {digest} is not stored here", "NOT_FOUND")
        for start in range(offset, len(DATA), 2**20):
            self.sent += len(DATA[start : start + 2**20])
            yield DATA[start : start + 2**20]


@pytest.fixture
def hub():
    return Hub()


@pytest_asyncio.fixture
async def relay(hub, tmp_path):
    async with running_relay(hub, tmp_path / "relay") as relay:
        yield relay


@pytest_asyncio.fixture
async def client(relay):
    async with WeightClient(relay.address) as client:
        yield client


def cache(port, directory):
    return BlobCache(directory, port, Link(None, Pacing(first_delay=0.001, longest_delay=0.002)))


async def test_a_relay_answers_like_the_hub(hub, client):
    assert await client.await_version(0, 60.0) == 7
    assert await client.get_plan(held_version=0, wanted_version=0, encodings=(WeightEncoding.FULL_RAW,)) == (
        MANIFEST,
    )
    assert await client.get_plan(held_version=7, wanted_version=0, encodings=(WeightEncoding.FULL_RAW,)) == ()
    with pytest.raises(RefusedError, match="no way with these encodings") as caught:
        await client.get_plan(held_version=0, wanted_version=0, encodings=(WeightEncoding.ULP_DELTA,))
    assert caught.value.reason == "INCOMPATIBLE"


async def test_a_relay_that_is_followed_has_news_only(hub, client):
    encodings = (WeightEncoding.FULL_RAW,)
    await client.get_plan(held_version=0, wanted_version=0, encodings=encodings)
    assert await client.await_version(0, 60.0) == 7
    assert await client.get_plan(held_version=0, wanted_version=0, encodings=encodings) == (MANIFEST,)
    assert b"".join([chunk async for chunk in client.fetch_blob(BLOB.digest, 0)]) == DATA
    assert hub.fetches == [0]


async def test_many_workers_cost_the_slow_line_one_crossing(hub, relay, tmp_path):
    async def worker(number):
        async with WeightClient(relay.address) as client:
            path = await cache(client, tmp_path / f"w{number}").fetch(BLOB)
            return path.read_bytes() == DATA

    assert all(await asyncio.gather(*(worker(number) for number in range(8))))
    assert hub.sent == len(DATA)


async def test_a_worker_goes_on_where_it_stopped(hub, client):
    chunks = [chunk async for chunk in client.fetch_blob(BLOB.digest, len(DATA) - 10)]
    assert b"".join(chunks) == DATA[-10:]


async def test_what_the_hub_does_not_have_is_not_found(client):
    with pytest.raises(RefusedError) as caught:
        _ = [chunk async for chunk in client.fetch_blob("0" * 64, 0)]
    assert caught.value.reason == "NOT_FOUND"


async def test_a_relay_that_died_is_bypassed(hub, tmp_path):
    async with running_relay(hub, tmp_path / "relay") as relay:
        address = relay.address
    async with WeightClient(address) as client:
        weights = RelayedWeights(client, hub)
        assert await weights.await_version(0, 60.0) == 7
        path = await cache(weights, tmp_path / "w").fetch(BLOB)
    assert path.read_bytes() == DATA
    assert weights.bypasses == 1


async def test_a_relay_on_a_relay_is_one_more_hop(hub, relay, client, tmp_path):
    async with running_relay(client, tmp_path / "second") as second, WeightClient(second.address) as worker:
        assert await worker.await_version(0, 60.0) == 7
        path = await cache(worker, tmp_path / "w").fetch(BLOB)
    assert path.read_bytes() == DATA
    assert hub.sent == len(DATA)


async def test_one_relay_uses_a_directory(hub, relay, tmp_path):
    with pytest.raises(StorageError, match="pid"):
        async with running_relay(hub, tmp_path / "relay"):
            pass


async def test_strangers_are_kept_out(hub, tmp_path):
    with pytest.raises(ConfigError, match=r"relay\.listen.*--role relay"):
        async with running_relay(hub, tmp_path / "other", listen="0.0.0.0:0"):
            pass
    insecure = SecurityConfig(insecure=True)
    async with running_relay(hub, tmp_path / "other", listen="0.0.0.0:0", security=insecure) as relay:
        assert relay.address.startswith("0.0.0.0:")


async def test_with_tls_only_those_with_credentials_of_the_run_get_weights(hub, tmp_path):
    authority = Authority.create(tmp_path / "certs", days=30)

    def security(name, role, *hosts):
        path = tmp_path / f"{name}.credentials"
        write_bundle(authority.issue(name, role, hosts, days=5), path)
        return SecurityConfig(credentials=path, registry=authority.registry)

    own = security("relay", Role.RELAY, "127.0.0.1")
    worker, operator = security("w", Role.WORKER), security("alice", Role.OPERATOR)
    async with running_relay(hub, tmp_path / "relay", security=own) as relay:
        async with WeightClient(relay.address, channel_credentials(worker)) as client:
            assert await client.await_version(0, 60.0) == 7
        async with WeightClient(relay.address, channel_credentials(operator)) as client:
            with pytest.raises(RefusedError, match="may not call") as caught:
                await client.await_version(0, 60.0)
            assert caught.value.reason == "NOT_AUTHORIZED"
        async with WeightClient(relay.address) as client:
            with pytest.raises(UnreachableError):
                await client.await_version(0, 60.0)
