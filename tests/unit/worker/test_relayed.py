"""Weights through a relay that may be gone."""

import pytest

from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.worker.relayed import RelayedWeights

pytestmark = pytest.mark.asyncio

DATA = bytes(range(100))


class Port:
    def __init__(self, name):
        self.name, self.error, self.breaks_at, self.calls = name, None, None, []

    def check(self, method, *arguments):
        self.calls.append((method, *arguments))
        if self.error is not None and self.breaks_at is None:
            raise self.error

    async def get_plan(self, *, held_version, wanted_version, encodings):
        self.check("get_plan", held_version)
        return (self.name,)

    async def await_version(self, after_version, wait):
        self.check("await_version", after_version)
        return 7

    async def fetch_blob(self, digest, offset):
        self.check("fetch_blob", offset)
        for start in range(offset, len(DATA), 10):
            if self.breaks_at == start:
                raise self.error
            yield DATA[start : start + 10]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def relay():
    return Port("relay")


@pytest.fixture
def hub():
    return Port("hub")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def weights(relay, hub, clock):
    return RelayedWeights(relay, hub, rest=30.0, clock=clock)


async def plan(weights):
    (name,) = await weights.get_plan(held_version=1, wanted_version=0, encodings=(1,))
    return name


async def fetch(weights, offset=0):
    return b"".join([chunk async for chunk in weights.fetch_blob("d", offset)])


async def test_a_relay_that_answers_is_all_that_is_asked(weights, hub):
    assert await plan(weights) == "relay"
    assert await weights.await_version(6, 1.0) == 7
    assert await fetch(weights, 5) == DATA[5:]
    assert hub.calls == []
    assert weights.bypasses == 0


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("refused"),
        RefusedError("full", "STORAGE_FULL"),
        RefusedError("not a relay", "INCOMPATIBLE"),
        RefusedError("who are you", "NOT_AUTHORIZED"),
    ],
)
async def test_a_relay_in_trouble_is_bypassed_for_a_while_and_counted_once(weights, relay, clock, error):
    relay.error = error
    assert await plan(weights) == "hub"
    assert await plan(weights) == "hub"
    assert await weights.await_version(6, 1.0) == 7
    assert (weights.bypasses, len(relay.calls)) == (1, 1)
    relay.error = None
    clock.now = 30.0
    assert await plan(weights) == "relay"
    assert weights.bypasses == 1


async def test_a_download_goes_on_from_the_hub_where_the_relay_broke_off(weights, relay, hub):
    relay.error, relay.breaks_at = UnreachableError("cut"), 40
    assert await fetch(weights) == DATA
    assert hub.calls == [("fetch_blob", 40)]
    assert weights.bypasses == 1


async def test_wrong_bytes_of_a_relay_make_the_download_begin_again_at_the_hub(weights, relay, hub):
    relay.error, relay.breaks_at = RefusedError("thrown away", "DIGEST_MISMATCH"), 40
    with pytest.raises(RefusedError, match="thrown away"):
        await fetch(weights)
    assert await fetch(weights) == DATA
    assert hub.calls == [("fetch_blob", 0)]


@pytest.mark.parametrize("reason", ["NOT_FOUND", "UNKNOWN_VERSION", "RUN_NOT_OPEN"])
async def test_what_the_hub_refuses_through_the_relay_is_its_word(weights, relay, hub, reason):
    relay.error = RefusedError("no", reason)
    with pytest.raises(RefusedError, match="no"):
        await plan(weights)
    assert hub.calls == []
    assert weights.bypasses == 0
