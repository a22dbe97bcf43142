"""What a relay asks the hub for many workers."""

import asyncio

import pytest
import pytest_asyncio

from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.relay.upstream import Upstream

pytestmark = pytest.mark.asyncio


class Hub:
    def __init__(self):
        self.latest, self.error = 3, None
        self.plans, self.watches = [], []
        self.changed = asyncio.Condition()
        self.asked_for_two = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def await_version(self, after_version, wait):
        self.watches.append(after_version)
        async with self.changed:
            await self.changed.wait_for(lambda: self.error is not None or self.latest > after_version)
        if self.error is not None:
            raise self.error
        return self.latest

    async def get_plan(self, *, held_version, wanted_version, encodings):
        self.plans.append(held_version)
        if len(self.plans) == 2:
            self.asked_for_two.set()
        await self.open.wait()
        if held_version == 99:
            raise RefusedError("no way", "INCOMPATIBLE")
        return (f"from {held_version} to {self.latest}",)

    async def change(self, **values):
        async with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()


@pytest.fixture
def hub():
    return Hub()


@pytest_asyncio.fixture
async def upstream(hub):
    upstream = Upstream(hub, answer_seconds=3600.0)
    yield upstream
    await upstream.close()


async def test_all_who_wait_for_a_version_share_one_question(hub, upstream):
    waiting = [asyncio.create_task(upstream.await_version(3, 60.0)) for _ in range(10)]
    assert await upstream.await_version(0, 60.0) == 3
    await hub.change(latest=4)
    assert await asyncio.gather(*waiting) == [4] * 10
    assert hub.watches[:2] == [0, 3]


async def test_a_wait_ends_with_what_is_known(upstream):
    await upstream.await_version(0, 60.0)
    assert await upstream.await_version(3, 0.0) == 3


async def test_workers_in_the_same_position_share_a_plan(hub, upstream):
    await upstream.await_version(0, 60.0)
    hub.open.clear()
    asking = [asyncio.create_task(upstream.get_plan(held, 0, (1, 3))) for held in (2, 2, 1, 2)]
    await hub.asked_for_two.wait()
    asking[0].cancel()  # the one whose question it was
    hub.open.set()
    await asyncio.gather(asking[0], return_exceptions=True)
    assert await asyncio.gather(*asking[1:]) == [("from 2 to 3",), ("from 1 to 3",), ("from 2 to 3",)]
    assert await upstream.get_plan(2, 0, (3, 1)) == ("from 2 to 3",)
    assert sorted(hub.plans) == [1, 2]


async def test_a_plan_counts_until_the_next_version(hub, upstream):
    await upstream.await_version(0, 60.0)
    await upstream.get_plan(2, 0, (1,))
    await hub.change(latest=4)
    await upstream.await_version(3, 60.0)
    assert await upstream.get_plan(2, 0, (1,)) == ("from 2 to 4",)


async def test_a_refusal_is_told_and_not_remembered(hub, upstream):
    for _ in range(2):
        with pytest.raises(RefusedError, match="no way"):
            await upstream.get_plan(99, 0, (1,))
    assert hub.plans == [99, 99]


async def test_a_hub_that_does_not_answer_is_told_to_those_who_wait(hub, upstream):
    await upstream.await_version(0, 60.0)
    waiting = asyncio.create_task(upstream.await_version(3, 60.0))
    await hub.change(error=UnreachableError("refused"))
    with pytest.raises(UnreachableError, match="does not answer the relay: refused"):
        await waiting
    await hub.change(error=None, latest=5)
    while True:  # the watcher rests a moment before it asks again
        try:
            assert await upstream.await_version(3, 60.0) == 5
            break
        except UnreachableError:
            await asyncio.sleep(0.01)
