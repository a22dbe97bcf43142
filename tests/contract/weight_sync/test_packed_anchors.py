"""Full copies in byte planes for those who join late: fewer bytes on the line, the same bits in the engine."""

import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.wire.messages import WeightEncoding
from hetero_rl.worker.weight_stage import ENCODINGS

pytestmark = pytest.mark.asyncio


async def packed(site):
    """Versions 1 to 3; the way to the last one begins at a packed copy of it."""
    publisher = await site.open(anchor_every=2, anchors="planes")
    await site.publish(publisher, 0, 1, 2)
    return publisher


async def first_copy(client):
    manifest, *_ = await client.get_plan(held_version=0, wanted_version=0, encodings=ENCODINGS)
    return manifest


async def test_a_late_worker_gets_the_packed_copy_and_goes_on_with_deltas(site, client):
    publisher = await packed(site)
    anchor = await first_copy(client)
    assert (anchor.version, anchor.encoding) == (3, WeightEncoding.FULL_PLANES)
    raw = sum(entry.data_type.item_size * 64 * 32 for entry in anchor.tensors if entry.name == "embed")
    assert sum(blob.size for blob in anchor.blobs) < 0.9 * raw
    stage = site.worker(client)
    await site.follow(stage, 2)
    assert site.fetched == [blob.digest for blob in anchor.blobs]
    await site.publish(publisher, 3)
    await site.follow(stage, 3)
    assert stage.fallbacks == 0


async def test_a_worker_that_starts_again_fetches_no_packed_copy_twice(site, client):
    await packed(site)
    await site.follow(site.worker(client), 2)
    before = list(site.fetched)
    again = site.worker(client)
    await site.follow(again, 2)
    assert site.fetched == before


async def test_a_packed_copy_with_other_bytes_is_fetched_again(site, client):
    await packed(site)
    stage = site.worker(client)
    await site.follow(stage, 2)
    (blob,) = (await first_copy(client)).blobs
    file = site.directory / "w" / blob.digest
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    again = site.worker(client)
    with pytest.raises(DamagedError, match=blob.digest):
        await again.advance(site.newest)
    await site.follow(again, 2)
