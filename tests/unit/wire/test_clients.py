"""The clients against real servers: what they send, what they make of answers, where they stop."""

import asyncio
import dataclasses
import hashlib
import threading

import grpc
import pytest

from hetero_rl.errors import FencedError, InvalidMessageError, RefusedError, UnreachableError
from hetero_rl.v1 import (
    rollout_service_pb2,
    rollout_service_pb2_grpc,
    training_service_pb2,
    training_service_pb2_grpc,
    weight_service_pb2,
    weight_service_pb2_grpc,
)
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.channels import CHUNK_BYTES, DEFAULT_MAX_MESSAGE_BYTES, Deadlines
from hetero_rl.wire.clients import RolloutClient, WeightClient, default_encoding
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.convert.trajectories import finished_group_to_proto
from hetero_rl.wire.convert.weights import manifest_to_proto
from hetero_rl.wire.messages import (
    BlobReference,
    FinishedGroup,
    PromptGroup,
    SamplingParameters,
    ScoreBatch,
    Submission,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
)
from hetero_rl.wire.ports import BatchProgress
from hetero_rl.wire.refusal import to_refusal
from hetero_rl.wire.upload import rechunk

DATA = hashlib.sha256(b"seed").digest() * (3 * CHUNK_BYTES // 32) + b"tail"
BLOB = BlobReference(hashlib.sha256(DATA).hexdigest(), len(DATA))
GROUP = PromptGroup(
    group_id="g",
    ordinal=0,
    prompt_token_ids=int32_column([1]),
    group_size=1,
    sampling=SamplingParameters(max_new_tokens=1, stop_token_ids=()),
)


class Training(training_service_pb2_grpc.TrainingServiceServicer):
    """Holds what was uploaded; its methods have the names in the protocol."""

    def __init__(self):
        self.held = b""
        self.chunk_sizes = []
        self.enqueued = []
        self.batches = {}

    def OpenRun(self, request, context):
        return training_service_pb2.OpenRunResponse(trainer_epoch=7)

    def EnqueueGroups(self, request, context):
        self.enqueued.append([group.group_id for group in request.groups])
        return training_service_pb2.EnqueueGroupsResponse(accepted=len(request.groups), credits=5)

    def TakeBatch(self, request, context):
        assert request.trainer_epoch == 7
        answer = self.batches.get(request.step, ())
        if isinstance(answer, Exception):
            refusal = to_refusal(answer)
            context.set_trailing_metadata(refusal.trailing_metadata)
            context.abort(refusal.status, refusal.text)
        for group in answer:
            if isinstance(group, training_service_pb2.TakeBatchResponse):
                yield group
                continue
            yield training_service_pb2.TakeBatchResponse(group=finished_group_to_proto(group))

    def GetBlob(self, request, context):
        return training_service_pb2.GetBlobResponse(held_bytes=len(self.held))

    def PutBlob(self, requests, context):
        for number, request in enumerate(requests):
            assert request.HasField("blob") == (number == 0)
            assert request.offset == len(self.held)
            self.held += request.data
            self.chunk_sizes.append(len(request.data))
        return training_service_pb2.PutBlobResponse(held_bytes=len(self.held))


@pytest.fixture
def hub():
    return Training()


@pytest.fixture
def trainer(serve, hub):
    address = serve(
        lambda server: training_service_pb2_grpc.add_TrainingServiceServicer_to_server(hub, server)
    )
    with TrainingClient(address) as client:
        client._open_epoch = 7
        yield client


def test_an_upload_goes_in_chunks_and_only_once(trainer, hub):
    trainer.put_blob(BLOB, iter([DATA[:1000], DATA[1000:]]))
    assert hub.held == DATA
    assert hub.chunk_sizes == [CHUNK_BYTES] * 3 + [4]
    trainer.put_blob(BLOB, iter([DATA]))
    assert len(hub.chunk_sizes) == 4


def test_an_upload_resumes_where_the_hub_stopped(trainer, hub):
    hub.held = DATA[:1_234_567]
    trainer.put_blob(BLOB, iter([DATA[:999], DATA[999:]]))
    assert hub.held == DATA


def test_chunks_that_do_not_add_up_to_the_blob_are_this_side_s_error(trainer):
    with pytest.raises(InvalidMessageError, match=f"add up to 9 bytes, its size is {len(DATA)}"):
        trainer.put_blob(BLOB, iter([b"too short"]))


def test_an_error_while_reading_the_chunks_is_raised_as_it_is(trainer):
    def broken():
        yield b"x"
        raise PermissionError("weights.bin")

    with pytest.raises(PermissionError, match=r"weights\.bin"):
        trainer.put_blob(BLOB, broken())


def test_an_empty_blob_is_announced(trainer, hub):
    trainer.put_blob(BlobReference(hashlib.sha256(b"").hexdigest(), 0), iter([]))
    assert hub.chunk_sizes == [0]


def test_a_hub_that_holds_more_than_the_blob_is_refused(trainer, hub):
    hub.held = b"xx"
    with pytest.raises(InvalidMessageError, match="held_bytes is 2, the blob has 1"):
        trainer.put_blob(BlobReference(hashlib.sha256(b"x").hexdigest(), 1), iter([b"x"]))


def test_a_batch_that_is_not_complete_is_none(trainer):
    assert trainer.take_batch(1, 0.0) is None


def test_a_batch_arrives_group_by_group(trainer, hub):
    finished = FinishedGroup(group=GROUP, batches=(), version_steps={1: 0}, worker_names=(), backends=())
    hub.batches[1] = (finished, finished)
    assert trainer.take_batch(1, 0.0) == (finished, finished)


def test_a_hub_that_sends_nothing_ahead_sends_whole_batches(trainer, hub):
    finished = FinishedGroup(group=GROUP, batches=(), version_steps={1: 0}, worker_names=(), backends=())
    assert trainer.take_batch_ahead(1, 0.0, held=(), at_least=1) == BatchProgress(None, ())
    hub.batches[1] = (finished,)
    assert trainer.take_batch_ahead(1, 0.0, held=("g",), at_least=1) == BatchProgress(("g",), (finished,))


def test_a_hub_that_names_a_group_that_is_not_held_speaks_another_dialect(trainer, hub):
    hub.batches[1] = (training_service_pb2.TakeBatchResponse(held_group_id="g"),)
    with pytest.raises(InvalidMessageError, match="held_group_id 'g' is not held here"):
        trainer.take_batch_ahead(1, 0.0, held=("f",), at_least=1)


def test_an_answer_is_a_batch_or_groups_ahead_of_theirs_and_not_both(trainer, hub):
    finished = FinishedGroup(group=GROUP, batches=(), version_steps={1: 0}, worker_names=(), backends=())
    ahead = training_service_pb2.TakeBatchResponse(group=finished_group_to_proto(finished), ahead=True)
    hub.batches[1] = (ahead, finished)
    with pytest.raises(InvalidMessageError, match="ahead is set for a part of the answer"):
        trainer.take_batch_ahead(1, 0.0, held=(), at_least=1)


def test_refusals_arrive_as_the_hub_meant_them(trainer, hub):
    hub.batches[1] = FencedError("epoch 8 has taken over")
    hub.batches[2] = RefusedError("step 2 is not next", "INVALID_FIELD", {"field": "TakeBatchRequest.step"})
    with pytest.raises(FencedError, match="epoch 8"):
        trainer.take_batch(1, 0.0)
    with pytest.raises(RefusedError, match="step 2") as caught:
        trainer.take_batch(2, 0.0)
    assert caught.value.details == {"field": "TakeBatchRequest.step"}


def test_a_group_may_arrive_in_a_message_larger_than_any_that_may_be_sent(trainer, hub):
    large = dataclasses.replace(GROUP, payload=bytes(DEFAULT_MAX_MESSAGE_BYTES + 1))
    hub.batches[1] = (FinishedGroup(group=large, batches=(), version_steps={}, worker_names=(), backends=()),)
    assert trainer.take_batch(1, 0.0) == hub.batches[1]


def test_a_message_above_the_limit_is_refused_before_it_is_sent(trainer):
    large = dataclasses.replace(GROUP, payload=bytes(DEFAULT_MAX_MESSAGE_BYTES + 1))
    with pytest.raises(RefusedError, match="larger than max") as caught:
        trainer.enqueue_groups([large])
    assert caught.value.reason == "TOO_LARGE"


def test_many_groups_go_in_several_messages(trainer, hub):
    large = [
        PromptGroup(
            group_id=f"g{i}",
            ordinal=i,
            prompt_token_ids=int32_column([1]),
            group_size=1,
            sampling=GROUP.sampling,
            payload=bytes(2**20),
        )
        for i in range(5)
    ]
    receipt = trainer.enqueue_groups(large)
    assert hub.enqueued == [["g0", "g1"], ["g2", "g3"], ["g4"]]
    assert (receipt.accepted, receipt.credits) == (5, 5)


def test_enqueueing_nothing_asks_for_credits(trainer, hub):
    assert trainer.enqueue_groups([]).credits == 5
    assert hub.enqueued == [[]]


def test_calls_before_open_run_are_refused_here():
    with TrainingClient("127.0.0.1:1") as client, pytest.raises(RefusedError, match="open_run first"):
        client.take_batch(1, 0.0)


def test_a_hub_that_is_gone_is_unreachable():
    with (
        FleetClient("127.0.0.1:1") as client,
        pytest.raises(UnreachableError, match=r"GetRunStatus at 127\.0\.0\.1:1"),
    ):
        client.run_status()


def test_the_fleet_client_reads_the_status(serve):
    with FleetClient(serve()) as client:
        assert client.run_status().step == 3


def test_pieces_of_any_size_become_chunks_of_one_size():
    assert list(rechunk([b"abc", b"", b"defgh"], 4)) == [b"abcd", b"efgh"]
    assert list(rechunk([b"abc", b"def"], 2, skip=4)) == [b"ef"]
    assert list(rechunk([b"abc"], 2, skip=3)) == []


def test_columns_are_coded_only_across_a_network():
    assert default_encoding("127.0.0.1:1") is ColumnEncoding.RAW
    assert default_encoding("hub.example:1") is ColumnEncoding.BYTE_PLANES


class Weights(weight_service_pb2_grpc.WeightServiceServicer):
    def __init__(self):
        self.offsets = None
        self.stalled = threading.Event()

    def FetchBlob(self, request, context):
        offsets = self.offsets or range(request.offset, len(DATA), CHUNK_BYTES)
        for offset in offsets:
            yield weight_service_pb2.FetchBlobResponse(
                offset=offset, data=DATA[offset : offset + CHUNK_BYTES]
            )
        if request.digest == "stall":
            self.stalled.wait(100)
        if request.digest == "full":
            refusal = to_refusal(RefusedError("no blob full", "NOT_FOUND"))
            context.set_trailing_metadata(refusal.trailing_metadata)
            context.abort(refusal.status, refusal.text)

    def GetPlan(self, request, context):
        assert list(request.encodings) == [1, 3]
        return weight_service_pb2.GetPlanResponse()

    def AwaitVersion(self, request, context):
        return weight_service_pb2.AwaitVersionResponse(latest_weight_version=request.after_version + 1)


class FollowedWeights(Weights):
    """A peer that sends the first blob of a version behind its news, or a part of it."""

    def __init__(self, manifest, sent=None, code=None):
        super().__init__()
        self.manifest, self.sent, self.code = manifest, len(DATA) if sent is None else sent, code
        self.calls = []
        self.ended = threading.Event()

    def FetchBlob(self, request, context):
        self.calls.append(("FetchBlob", request.offset))
        yield from super().FetchBlob(request, context)

    def GetPlan(self, request, context):
        self.calls.append(("GetPlan", request.held_version))
        return weight_service_pb2.GetPlanResponse()

    def FollowVersion(self, request, context):
        self.calls.append(("FollowVersion", request.after_version))
        context.add_callback(self.ended.set)
        if self.code is not None:
            context.abort(self.code, "no news")
        yield weight_service_pb2.FollowVersionResponse(
            latest_weight_version=request.after_version + 1, manifests=[manifest_to_proto(self.manifest)]
        )
        for offset in range(0, self.sent, CHUNK_BYTES):
            yield weight_service_pb2.FollowVersionResponse(
                chunk=weight_service_pb2.FetchBlobResponse(
                    offset=offset, data=DATA[offset : min(offset + CHUNK_BYTES, self.sent)]
                )
            )
        if self.sent == 0:  # stays open until it is cancelled
            self.ended.wait(100)


@pytest.fixture
def depot():
    return Weights()


@pytest.fixture
def depot_address(serve, depot):
    yield serve(lambda server: weight_service_pb2_grpc.add_WeightServiceServicer_to_server(depot, server))
    depot.stalled.set()


async def read(client, digest, offset=0):
    return b"".join([chunk async for chunk in client.fetch_blob(digest, offset)])


@pytest.mark.asyncio
async def test_a_download_starts_at_any_offset(depot_address):
    async with WeightClient(depot_address) as client:
        assert await read(client, BLOB.digest, 17) == DATA[17:]


@pytest.mark.asyncio
async def test_a_download_with_a_hole_is_refused(depot_address, depot):
    depot.offsets = [0, 2 * CHUNK_BYTES]
    async with WeightClient(depot_address) as client:
        with pytest.raises(InvalidMessageError, match=f"is {2 * CHUNK_BYTES}, expected {CHUNK_BYTES}"):
            await read(client, BLOB.digest)


@pytest.mark.asyncio
async def test_a_download_that_stalls_ends_with_the_chunk_s_deadline(depot_address):
    async with WeightClient(depot_address, deadlines=Deadlines(chunk=0.3)) as client:
        with pytest.raises(UnreachableError, match=r"no chunk for 0\.3 s"):
            await read(client, "stall")


@pytest.mark.asyncio
async def test_a_download_that_the_hub_breaks_off_is_not_taken_for_complete(depot_address):
    async with WeightClient(depot_address) as client:
        with pytest.raises(RefusedError, match="no blob full") as caught:
            await read(client, "full")
    assert caught.value.reason == "NOT_FOUND"


@pytest.mark.asyncio
async def test_plans_and_versions_are_asked_for(depot_address):
    async with WeightClient(depot_address) as client:
        encodings = (WeightEncoding.FULL_RAW, WeightEncoding.ULP_DELTA)
        assert await client.get_plan(held_version=1, wanted_version=0, encodings=encodings) == ()
        assert await client.await_version(4, 1.0) == 5


class Rollout(rollout_service_pb2_grpc.RolloutServiceServicer):
    def __init__(self):
        self.requests = []

    def SubmitResults(self, request, context):
        self.requests.append(request)
        return rollout_service_pb2.SubmitResultsResponse(duplicate=len(self.requests) > 1, credits=9)

    def LeaseWork(self, request, context):
        self.requests.append(request)
        return rollout_service_pb2.LeaseWorkResponse(no_work_reason=2, latest_weight_version=4)


@pytest.mark.asyncio
@pytest.mark.parametrize("encoding", ColumnEncoding)
async def test_submissions_carry_the_chosen_encoding(serve, encoding):
    hub = Rollout()
    address = serve(lambda server: rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(hub, server))
    scores = ScoreBatch(score_id="s", log_probs=float32_column([-1.0]), weight_version=1, numerics_id="n")
    submission = Submission(
        worker=WorkerIdentity("w", 1), sequence=3, lease_id="l", final=True, results=scores
    )
    async with RolloutClient(address, encoding=encoding) as client:
        receipts = [await client.submit_results(submission) for _ in range(2)]
    assert [receipt.duplicate for receipt in receipts] == [False, True]
    assert {int(request.scores.log_probs.encoding) for request in hub.requests} == {encoding}


@pytest.mark.asyncio
async def test_no_work_comes_with_its_reason(serve):
    hub = Rollout()
    address = serve(lambda server: rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(hub, server))
    async with RolloutClient(address) as client:
        grant = await client.lease_work(
            WorkerIdentity("w", 1), loaded_weight_version=1, free_sequences=4, wait=0.25
        )
    assert (grant.leases, grant.no_work_reason.name, grant.latest_weight_version) == ((), "STALENESS_GATE", 4)
    assert (hub.requests[0].wait.seconds, hub.requests[0].wait.nanos) == (0, 250_000_000)


@pytest.mark.asyncio
async def test_a_hub_that_takes_results_only_one_by_one_gets_them_so(serve):
    hub = Rollout()  # the base class of a servicer answers UNIMPLEMENTED to what it does not have
    address = serve(lambda server: rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(hub, server))
    scores = ScoreBatch(score_id="s", log_probs=float32_column([-1.0]), weight_version=1, numerics_id="n")
    sequence = [
        Submission(worker=WorkerIdentity("w", 1), sequence=number, lease_id="l", final=True, results=scores)
        for number in range(3)
    ]
    async with RolloutClient(address) as client:
        first = await client.submit_batch(sequence)
        second = await client.submit_batch(sequence[:1])
    assert [receipt.credits for receipt in (*first, *second)] == [9] * 4
    assert sorted(request.sequence for request in hub.requests) == [0, 0, 1, 2]


@pytest.fixture
def follow(serve):
    """Serves weights with `FollowVersion`; the function takes what `FollowedWeights` takes."""

    def started(*arguments, **settings):
        depot = FollowedWeights(*arguments, **settings)
        return depot, serve(
            lambda server: weight_service_pb2_grpc.add_WeightServiceServicer_to_server(depot, server)
        )

    return started


def delta_of(blob):
    return WeightManifest(
        version=8,
        step=7,
        encoding=WeightEncoding.ULP_DELTA,
        base_version=7,
        tensors=(),
        blobs=(blob,),
        state_digest="0" * 64,
    )


async def told(client, held=7):
    """Has asked for a plan once, and then heard of a version."""
    encodings = (WeightEncoding.FULL_RAW, WeightEncoding.ULP_DELTA)
    await client.get_plan(held_version=held, wanted_version=0, encodings=encodings)
    latest = await client.await_version(held, 1.0)
    plan = await client.get_plan(held_version=held, wanted_version=0, encodings=encodings)
    return latest, plan


@pytest.mark.asyncio
async def test_the_bytes_of_a_version_come_behind_its_news(follow):
    depot, address = follow(delta_of(BLOB))
    async with WeightClient(address) as client:
        latest, plan = await told(client)
        assert (latest, [manifest.version for manifest in plan]) == (8, [8])
        assert await read(client, BLOB.digest) == DATA
    assert depot.calls == [("GetPlan", 7), ("FollowVersion", 7)]


@pytest.mark.asyncio
async def test_a_stream_of_news_serves_its_blob_once(follow):
    depot, address = follow(delta_of(BLOB))
    async with WeightClient(address) as client:
        await told(client)
        assert await read(client, BLOB.digest) == await read(client, BLOB.digest) == DATA
    assert depot.calls[2:] == [("FetchBlob", 0)]


@pytest.mark.asyncio
async def test_what_is_left_of_a_followed_blob_is_fetched(follow):
    depot, address = follow(delta_of(BLOB), sent=CHUNK_BYTES + 5)
    async with WeightClient(address) as client:
        await told(client)
        start = await read(client, BLOB.digest)
        assert start == DATA[: CHUNK_BYTES + 5]
        assert await read(client, BLOB.digest, len(start)) == DATA[len(start) :]
    assert depot.calls[2:] == [("FetchBlob", CHUNK_BYTES + 5)]


@pytest.mark.asyncio
async def test_whoever_has_a_part_of_the_blob_cancels_the_stream_and_fetches_the_rest(follow):
    depot, address = follow(delta_of(BLOB), sent=0)
    async with WeightClient(address) as client:
        await told(client)
        assert not depot.ended.is_set()
        assert await read(client, BLOB.digest, 17) == DATA[17:]
        assert await asyncio.to_thread(depot.ended.wait, 90)
    assert depot.calls[2:] == [("FetchBlob", 17)]


@pytest.mark.asyncio
async def test_the_next_wait_ends_a_stream_that_nobody_read(follow):
    depot, address = follow(delta_of(BLOB), sent=0)
    async with WeightClient(address) as client:
        await told(client)
        assert not depot.ended.is_set()
        depot.sent = len(DATA)
        await client.await_version(8, 1.0)
        assert await asyncio.to_thread(depot.ended.wait, 90)
        assert await read(client, BLOB.digest) == DATA
    assert depot.calls[2:] == [("FollowVersion", 8)]


@pytest.mark.asyncio
async def test_a_peer_that_cannot_be_followed_is_asked_once(follow):
    depot, address = follow(delta_of(BLOB), code=grpc.StatusCode.UNIMPLEMENTED)
    async with WeightClient(address) as client:
        latest, plan = await told(client)
        assert (latest, plan) == (8, ())
        assert await client.await_version(8, 1.0) == 9
    assert [call for call, _ in depot.calls].count("FollowVersion") == 1


@pytest.mark.asyncio
async def test_a_peer_that_fails_is_unreachable_and_followed_again(follow):
    depot, address = follow(delta_of(BLOB), code=grpc.StatusCode.UNAVAILABLE)
    async with WeightClient(address) as client:
        with pytest.raises(UnreachableError):
            await told(client)
        depot.code = None
        assert await client.await_version(7, 1.0) == 8


@pytest.mark.asyncio
async def test_a_client_that_follows_nobody_asks_for_news_alone(follow):
    depot, address = follow(delta_of(BLOB))
    async with WeightClient(address, follow=False) as client:
        assert (await told(client))[0] == 8
    assert "FollowVersion" not in dict(depot.calls)
