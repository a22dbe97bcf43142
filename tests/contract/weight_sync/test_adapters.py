"""Versions of a frozen base and adapters: the base crosses the line once, whatever happens."""

import asyncio
import dataclasses

import pytest
import torch

pytest.importorskip("numba", reason="deltas need the codec")

from hetero_rl.errors import DamagedError, RefusedError
from hetero_rl.weights.adapter_rules import down_name, is_adapter_name, up_name
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.messages import AdapterDescription, WeightEncoding, WorkerIdentity

pytestmark = pytest.mark.asyncio

LORA = AdapterDescription(rank=2, alpha=4.0, target_modules=("proj",), base_digest="")


def state(step):
    """A tied base that never changes, and an adapter after some steps."""
    fixed = torch.Generator().manual_seed(1)
    embedding = torch.randn(64, 32, generator=fixed).to(torch.bfloat16)
    base = {
        "embed": embedding,
        "0.proj.weight": torch.randn(48, 32, generator=fixed).to(torch.bfloat16),
        "head": embedding,
    }
    down = torch.randn(2, 32, generator=fixed).to(torch.bfloat16)
    up = 0.1 * step * torch.randn(48, 2, generator=torch.Generator().manual_seed(2))
    return base | {down_name("0.proj"): down, up_name("0.proj"): up.to(torch.bfloat16)}


async def publish(site, publisher, *steps):
    for step in steps:
        await site.publish_state(publisher, step, state(step), LORA)


@pytest.fixture
def fetches(site):
    """How often a blob was fetched."""
    return lambda blob: site.fetched.count(blob.digest)


async def test_workers_that_keep_up_fall_behind_and_join_late_fetch_the_base_once(site, client, fetches):
    publisher = await site.open(anchor_every=3, adapters=True)
    await publish(site, publisher, 0)
    (first,) = await site.plan(client)
    base, _ = first.blobs
    close, behind, late = (site.worker(client, name) for name in ("close", "behind", "late"))
    await site.follow(close, 0, state(0))
    await site.follow(behind, 0, state(0))
    for step in (1, 2, 3, 4):
        await publish(site, publisher, step)
        await site.follow(close, step, state(step))
    assert fetches(base) == 2
    await site.follow(behind, 4, state(4))
    assert fetches(base) == 2
    way = await site.plan(client)
    assert [manifest.encoding for manifest in way] == [WeightEncoding.FULL_RAW, WeightEncoding.ULP_DELTA]
    assert way[0].blobs[0] == base  # the full copy that came later has the same base
    await site.follow(late, 4, state(4))
    assert fetches(base) == 3
    assert {stage.held.manifest.adapter for stage in (close, behind, late)} == {first.adapter}
    await asyncio.to_thread(publisher.close)


async def test_a_delta_brings_bytes_of_the_adapters_alone(site, client):
    publisher = await site.open(adapters=True)
    await publish(site, publisher, 0, 1)
    (delta,) = await site.plan(client, held=1)
    assert [entry.name for entry in delta.tensors if entry.size] == [up_name("0.proj")]
    assert {
        entry.digest == entry.base_digest for entry in delta.tensors if not is_adapter_name(entry.name)
    } == {True}
    await asyncio.to_thread(publisher.close)


async def test_after_damage_the_way_begins_at_a_full_copy_whose_base_is_on_the_disk(site, client, fetches):
    publisher = await site.open(adapters=True)
    await publish(site, publisher, 0)
    worker = site.worker(client)
    await site.follow(worker, 0, state(0))
    base, adapters = worker.held.manifest.blobs
    await publish(site, publisher, 1)
    (delta,) = await site.plan(client, held=1)
    broken = site.worker(Damaging(client, delta.blobs[0].digest))
    with pytest.raises(DamagedError):
        await site.follow(broken, 1, state(1))
    assert (broken.version, broken.fallbacks) == (0, 1)
    await site.follow(broken, 1, state(1))
    assert (fetches(base), fetches(adapters)) == (1, 1)
    await asyncio.to_thread(publisher.close)


async def test_a_resumed_trainer_publishes_in_full_and_only_adapters_move(
    site, client, second_trainer, fetches
):
    publisher = await site.open(adapters=True)
    await publish(site, publisher, 0, 1)
    worker = site.worker(client)
    await site.follow(worker, 1, state(1))
    base = worker.held.manifest.blobs[0]
    await asyncio.to_thread(publisher.close)
    again = await site.open(trainer=second_trainer, adapters=True)
    await publish(site, again, 5)
    await site.follow(worker, 5, state(5))
    assert fetches(base) == 1
    await asyncio.to_thread(again.close)


async def test_a_worker_that_loads_no_adapters_is_refused_at_the_door(site):
    publisher = await site.open(adapters=True)
    async with RolloutClient(site.address) as rollout:
        with pytest.raises(
            RefusedError, match=r"worker 'w' .* hetero-rl 0, .*publish = \"merged\""
        ) as caught:
            await rollout.join(site.join_request)
        capable = dataclasses.replace(site.join_request.capabilities, adapters=True)
        grant = await rollout.join(dataclasses.replace(site.join_request, capabilities=capable))
        await rollout.leave(WorkerIdentity("w", grant.worker_epoch), "done")
    assert caught.value.reason == "INCOMPATIBLE"
    await asyncio.to_thread(publisher.close)


class Damaging:
    """A weight service that flips a bit of one blob, the first time."""

    def __init__(self, client, digest):
        self.get_plan, self.await_version = client.get_plan, client.await_version
        self._client, self._digest = client, digest

    async def fetch_blob(self, digest, offset):
        async for chunk in self._client.fetch_blob(digest, offset):
            if digest == self._digest:
                self._digest = ""
                yield bytes([chunk[0] ^ 1]) + bytes(chunk[1:])
            else:
                yield chunk
