"""Requests and weight updates keep out of each other's way."""

import asyncio

import pytest

from hetero_rl.worker.engines.vllm.turnstile import Turnstile

pytestmark = pytest.mark.asyncio


async def turn():
    """Lets every task do what it can without waiting for anything."""
    for _ in range(20):
        await asyncio.sleep(0)


class Inside:
    """A request that stays until it is let go."""

    def __init__(self, turnstile, kind):
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._stay(turnstile, kind))

    async def _stay(self, turnstile, kind):
        async with turnstile.passed(kind):
            self.entered.set()
            await self.leave.wait()

    async def end(self):
        self.leave.set()
        await self.task


async def hold(turnstile, began, end, *, drain=False):
    async with turnstile.closed(drain=drain):
        began.set()
        await end.wait()


async def test_an_update_waits_for_scores_and_lets_nothing_in_meanwhile():
    turnstile, began, end = Turnstile(), asyncio.Event(), asyncio.Event()
    score = Inside(turnstile, "score")
    await score.entered.wait()
    update = asyncio.create_task(hold(turnstile, began, end))
    await turn()
    late = Inside(turnstile, "decode")
    await turn()
    assert (began.is_set(), late.entered.is_set()) == (False, False)

    await score.end()
    await began.wait()
    await turn()
    assert not late.entered.is_set()

    end.set()
    await update
    await late.entered.wait()
    await late.end()


@pytest.mark.parametrize("drain", [False, True])
async def test_completions_are_waited_for_only_when_draining(drain):
    turnstile, began, end = Turnstile(), asyncio.Event(), asyncio.Event()
    completion = Inside(turnstile, "decode")
    await completion.entered.wait()
    end.set()
    update = asyncio.create_task(hold(turnstile, began, end, drain=drain))
    await turn()
    assert began.is_set() is not drain

    await completion.end()
    await update


async def test_an_update_that_fails_opens_again():
    turnstile = Turnstile()
    with pytest.raises(RuntimeError):
        async with turnstile.closed(drain=False):
            raise RuntimeError
    async with turnstile.passed("decode"):
        pass
