"""What a weight version must survive on its way: every story ends bit-identical, or with an error that names the cause."""

import asyncio
import operator

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError, FencedError, RefusedError
from hetero_rl.weights.delta import DeltaCoder
from hetero_rl.wire.messages import WeightEncoding

pytestmark = pytest.mark.asyncio


class KilledError(Exception):
    """The process ends here."""


class Line:
    """The weight service over a line on which a test does something to plans or to bytes, once."""

    def __init__(self, client):
        self._client = client
        self.plans = None
        self.chunks = None

    async def get_plan(self, **wanted):
        plan = await self._client.get_plan(**wanted)
        change, self.plans = self.plans, None
        return change(plan) if change else plan

    async def await_version(self, after_version, wait):
        return await self._client.await_version(after_version, wait)

    async def fetch_blob(self, digest, offset):
        change, self.chunks = self.chunks, None
        async for chunk in self._client.fetch_blob(digest, offset):
            yield change(chunk) if change else chunk


@pytest.fixture
def line(client):
    return Line(client)


def flipped(chunk):
    return bytes(chunk[:-1]) + bytes([chunk[-1] ^ 1])


cut = operator.itemgetter(slice(1000))


def first_twice(plan):
    return (plan[0], *plan)


def last_first(plan):
    return tuple(reversed(plan))


def without_the_second(plan):
    return (plan[0], *plan[2:])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (first_twice, "against version 1, not against the held version 2"),
        (last_first, "against version 3, not against the held version 1"),
        (without_the_second, "against version 3, not against the held version 2"),
    ],
    ids=["duplicate", "reordered", "missing"],
)
async def test_deltas_that_do_not_come_once_each_and_in_order_are_never_applied(site, line, change, problem):
    publisher = await site.open()
    stage = site.worker(line)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1, 2, 3)
    line.plans = change
    with pytest.raises(DamagedError, match=problem):
        await stage.advance(site.newest)
    assert (stage.version, stage.fallbacks) == (0, 1)
    await site.follow(stage, 3)


async def test_a_delta_corrupted_on_the_line_is_fetched_again_with_a_full_copy(site, line):
    publisher = await site.open()
    stage = site.worker(line)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1)
    line.chunks = flipped
    with pytest.raises(DamagedError, match="fetch it again"):
        await stage.advance(site.newest)
    assert (stage.version, stage.fallbacks) == (0, 1)
    await site.follow(stage, 1)


async def test_a_blob_truncated_on_the_line_is_continued(site, line):
    publisher = await site.open()
    stage = site.worker(line)
    await site.publish(publisher, 0)
    line.chunks = cut
    await site.follow(stage, 0)
    assert stage.fallbacks == 0
    assert len(site.fetched) == 2  # the same blob, from where it stopped


async def test_a_blob_that_the_hub_lost_is_an_error_that_names_it(site, line):
    publisher = await site.open()
    stage = site.worker(line)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1)
    (delta,) = await site.plan(line, held=1)
    site.blob_file(delta).unlink()
    for _ in range(2):  # at the download, and from then on already at the question for a way
        with pytest.raises(RefusedError, match=delta.blobs[0].digest) as caught:
            await stage.advance(site.newest)
        assert caught.value.reason == "NOT_FOUND"
        assert stage.version == 1
    await site.publish(publisher, 2)
    (full,) = await site.plan(line, held=1)
    assert full.encoding is WeightEncoding.FULL_RAW
    await site.follow(stage, 2)


async def test_a_receiver_killed_while_it_fetches_goes_on_from_its_disk(site, line):
    publisher = await site.open()
    await site.publish(publisher, 0)

    fetch = line.fetch_blob

    async def die_on_the_way(digest, offset):
        if offset:
            raise KilledError
        async for chunk in fetch(digest, offset):
            yield chunk

    line.chunks, line.fetch_blob = cut, die_on_the_way
    with pytest.raises(KilledError):
        await site.worker(line).advance(site.newest)
    line.fetch_blob = fetch
    await site.follow(site.worker(line), 0)


async def test_a_receiver_killed_while_it_applies_a_delta_ends_with_the_right_weights(
    site, client, monkeypatch
):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1)
    decode = DeltaCoder.decode_arriving

    def half(self, *arguments):
        yield from decode(self, *arguments)
        raise KilledError

    monkeypatch.setattr(DeltaCoder, "decode_arriving", half)
    with pytest.raises(KilledError):
        await stage.advance(site.newest)
    monkeypatch.setattr(DeltaCoder, "decode_arriving", decode)
    site.fetched.clear()
    await site.follow(site.worker(client), 1)
    assert site.fetched == []  # full copy and delta lay on its disk


async def test_a_receiver_whose_disk_fails_while_it_applies_gives_up_what_it_holds(site, client, monkeypatch):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish(publisher, 1)
    await site.follow(stage, 1)
    await site.publish(publisher, 2)
    decode = DeltaCoder.decode_arriving

    def fail(self, *arguments):
        yield from decode(self, *arguments)
        raise OSError("a disk under the mapped file is gone")

    monkeypatch.setattr(DeltaCoder, "decode_arriving", fail)
    with pytest.raises(OSError, match="is gone"):
        await stage.advance(site.newest)
    monkeypatch.setattr(DeltaCoder, "decode_arriving", decode)
    assert (stage.version, stage.fallbacks) == (0, 1)
    await site.follow(stage, 2)


async def test_a_publisher_killed_after_the_manifest_and_before_its_acknowledgement(site, client):
    class Dying:
        put_blob = staticmethod(site.trainer.put_blob)

        @staticmethod
        def publish_version(manifest):
            site.trainer.publish_version(manifest)
            if manifest.version == 3:
                raise KeyboardInterrupt

    publisher = await site.open(port=Dying)
    stage = site.worker(client)
    await site.publish(publisher, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        await site.publish(publisher, 2)
    await site.follow(stage, 2)
    resumed = await site.open(resume_step=0)
    await site.publish(resumed, 0, 1)
    await site.follow(stage, 1)
    assert stage.version == 5


async def test_of_two_publishers_the_first_is_fenced_and_changes_nothing(site, client, second_trainer):
    first = await site.open()
    stage = site.worker(client)
    await site.publish(first, 0)
    second = await site.open(resume_step=0, trainer=second_trainer)
    with pytest.raises(FencedError, match="another trainer opened the run"):
        await site.publish(first, 5)
    await site.publish(second, 0, 1)
    await site.follow(stage, 1)
    assert await asyncio.to_thread(lambda: second.stored) == 3


ODD = {
    "one": torch.tensor([1.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(2.0, dtype=torch.float32),
    "empty": torch.empty(0, 8, dtype=torch.bfloat16),
    "far": torch.full((300_000,), 0.5, dtype=torch.bfloat16),
    "half": torch.linspace(-1, 1, 64, dtype=torch.float16),
    "count": torch.tensor([3], dtype=torch.int64),
    "odd": torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40], dtype=torch.bfloat16),
}


def changed(state, **changes):
    copied = {name: tensor.clone() for name, tensor in state.items()}
    for name, (place, value) in changes.items():
        copied[name].view(-1)[place] = value
    return copied


async def test_odd_tensors_and_gaps_beyond_16_bits_arrive_bit_for_bit(site, client):
    states = [
        ODD,
        changed(ODD, one=(0, 2.0), far=(-1, 0.25), count=(0, 4)),
        changed(ODD, scalar=(0, 3.0), far=(0, 0.125), half=(5, float("nan")), odd=(0, -0.0)),
        changed(ODD, odd=(slice(None), float("nan"))),
    ]
    publisher = await site.open()
    stage = site.worker(client)
    for step, state in enumerate(states):
        await site.publish_state(publisher, step, state)
        await site.follow(stage, step, state)
    plan = await site.plan(client, held=1)
    assert {manifest.encoding for manifest in plan} == {WeightEncoding.ULP_DELTA}


async def test_nothing_changed_and_everything_changed(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    noise = torch.randint(-(2**15), 2**15, (64, 32), dtype=torch.int16).view(torch.bfloat16)
    everything = {"embed": noise, "norm": torch.zeros(32, dtype=torch.bfloat16), "head": noise}
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    await site.publish_state(publisher, 1, site.state_after(0))
    (same,) = await site.plan(client, held=1)
    assert same.blobs == ()
    await site.follow(stage, 1, site.state_after(0))
    await site.publish_state(publisher, 2, everything)
    assert (await site.plan(client, held=2))[-1].encoding is WeightEncoding.FULL_RAW
    await site.follow(stage, 2, everything)


async def test_a_model_whose_tensors_were_renamed_or_reshaped_is_never_a_delta(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0)
    await site.follow(stage, 0)
    before = site.state_after(0)
    for step, state in enumerate(
        [
            {"renamed": before["embed"], "norm": before["norm"]},
            {"renamed": before["embed"].view(32, 64), "norm": before["norm"]},
        ],
        start=1,
    ):
        await site.publish_state(publisher, step, state)
        assert (await site.plan(client, held=step))[-1].encoding is WeightEncoding.FULL_RAW
        await site.follow(stage, step, state)


async def test_several_blobs_are_on_their_way_at_once_and_equal_ones_only_once(site, client):
    publisher = await site.open()
    stage = site.worker(client)
    await site.publish(publisher, 0, 1, 2, 1, 2)  # the deltas from 1 to 2 and back recur
    await site.follow(stage, 2)
    assert len(site.fetched) == len(set(site.fetched))
