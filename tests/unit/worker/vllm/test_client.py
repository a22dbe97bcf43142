"""Calls that concern the whole engine, with an engine that dies, fails or is slow."""

import asyncio
import types

import pytest

from hetero_rl.errors import EngineError
from hetero_rl.worker.engines.vllm.client import Client


@pytest.fixture
def llm():
    return types.SimpleNamespace(errored=False)


@pytest.fixture
def client(llm):
    return Client(None, llm)


async def never():
    await asyncio.Event().wait()


async def answered(value):
    await asyncio.sleep(0)
    return value


async def failed():
    await asyncio.sleep(0)
    raise ValueError("no such tensor")


@pytest.mark.asyncio
async def test_an_answer_is_returned(client):
    assert await client.call("pausing", answered(7)) == 7


@pytest.mark.asyncio
async def test_a_failure_says_what_failed_and_why(client):
    with pytest.raises(EngineError, match="loading weights failed in vLLM: ValueError: no such tensor"):
        await client.call("loading weights", failed())


@pytest.mark.asyncio
async def test_a_call_under_way_ends_when_the_engine_dies_though_vllm_never_answers_it(client, llm):
    under_way = asyncio.create_task(client.call("loading weights", never()))
    await asyncio.sleep(0)
    llm.errored = True

    with pytest.raises(EngineError, match="loading weights was under way when vLLM's engine process died"):
        await under_way


@pytest.mark.asyncio
async def test_an_answer_counts_even_if_the_engine_died_right_after_it(client, llm):
    llm.errored = True

    assert await client.call("pausing", answered(7)) == 7


@pytest.mark.asyncio
async def test_who_gives_up_waiting_ends_the_call(client):
    ended = asyncio.Event()

    async def long():
        try:
            await never()
        finally:
            ended.set()

    under_way = asyncio.create_task(client.call("pausing", long()))
    await asyncio.sleep(0.01)
    under_way.cancel()

    with pytest.raises(asyncio.CancelledError):
        await under_way
    await asyncio.wait_for(ended.wait(), 60)
