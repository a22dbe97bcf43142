"""Calls that outlive a hub's restart."""

import asyncio

import pytest

from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing

pytestmark = pytest.mark.asyncio


class Answers:
    """A call that ends in the given ways, one after another."""

    def __init__(self, *ways):
        self.ways = list(ways)
        self.called = asyncio.Event()

    async def __call__(self):
        self.called.set()
        way = self.ways.pop(0)
        if isinstance(way, Exception):
            raise way
        return way


async def test_a_call_is_repeated_until_it_is_answered():
    link = Link(None, Pacing(first_delay=0.001))
    call = Answers(UnreachableError("gone"), RefusedError("not yet", "RUN_NOT_OPEN"), "answer")
    assert await link.repeat("call", call) == "answer"
    assert call.ways == []


async def test_a_refusal_that_stays_is_raised_at_once():
    call = Answers(RefusedError("no", "MODEL_MISMATCH"), "never")
    with pytest.raises(RefusedError, match="no"):
        await Link(None, Pacing()).repeat("call", call)
    assert call.ways == ["never"]


async def test_one_answered_call_ends_the_waits_of_all_others():
    # Waits of up to an hour; the test ends at once or by its time limit.
    link = Link(None, Pacing(first_delay=3600.0, longest_delay=3600.0, patience=1e9))
    waiting = Answers(UnreachableError("gone"), "back")
    repeated = asyncio.create_task(link.repeat("waiting", waiting))
    await waiting.called.wait()
    await asyncio.sleep(0)
    assert await link.repeat("other", Answers("fine")) == "fine"
    assert await repeated == "back"
