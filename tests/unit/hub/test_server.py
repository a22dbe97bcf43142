"""A real server on loopback with the real clients, over stores in memory and on disk."""

import asyncio
import contextlib
import dataclasses
import socket
import sqlite3
import threading

import grpc
import pytest

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, DamagedJournalError, DiskFullError, FencedError, RefusedError
from hetero_rl.hub.handlers.context import HubSettings
from hetero_rl.hub.local_blobs import LocalBlobStore
from hetero_rl.hub.server import running_hub, running_local_hub
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.v1 import (
    columns_pb2,
    errors_pb2,
    rollout_service_pb2,
    trajectory_pb2,
    weight_service_pb2,
    weight_service_pb2_grpc,
)
from hetero_rl.wire import commits
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.clients import RolloutClient, WeightClient
from hetero_rl.wire.column_codec import ColumnEncoding, encode_column
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.health import CHECK_METHOD, ServingStatus, decode_status
from hetero_rl.wire.messages import (
    DataType,
    NoWorkReason,
    Purpose,
    WeightEncoding,
    WorkerIdentity,
)
from hetero_rl.wire.ports import BatchProgress

WATCH_METHOD = "/grpc.health.v1.Health/Watch"


class HubThread:
    """A hub with an event loop of its own, so that blocking clients can be used from the test."""

    def __init__(self, directory):
        self._directory = directory
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(100)

    async def _serve(self):
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        store = SqliteStore(self._directory / "journal.sqlite")
        blobs = LocalBlobStore(self._directory / "blobs")
        settings = HubSettings(max_message_bytes=2**20)
        async with running_hub(store, blobs, settings, sweep_seconds=0.05) as hub:
            self.address, self.core = hub.address, hub.core
            self._ready.set()
            await self._stop.wait()

    def stop(self):
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(100)
        assert not self._thread.is_alive()


@pytest.fixture
def hub_thread(tmp_path):
    hub = HubThread(tmp_path)
    yield hub
    hub.stop()


@pytest.fixture
def trainer(hub_thread):
    with TrainingClient(hub_thread.address) as client:
        yield client


def open_and_publish(trainer, messages, version=1):
    trainer.open_run(messages.run_request())
    trainer.put_blob(messages.blob(version), iter([messages.weights(version)]))
    trainer.publish_version(messages.manifest(version))


async def join(client, messages):
    grant = await client.join(messages.join_request())
    return WorkerIdentity("w1", grant.worker_epoch)


async def complete(client, messages, worker, lease, sequence):
    return await client.submit_results(messages.submission(worker, sequence, lease))


def test_a_group_goes_from_the_trainer_to_a_worker_and_back(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    receipt = trainer.enqueue_groups([messages.group(0), messages.group(1)])
    assert receipt.accepted == 2

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            description = await client.get_run()
            worker = await join(client, messages)
            grant = await client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=0)
            receipts = [
                await complete(client, messages, worker, lease, sequence)
                for sequence, lease in enumerate(grant.leases)
            ]
            again = await complete(client, messages, worker, grant.leases[0], 0)
            await client.leave(worker, "done")
            return description, receipts, again

    description, receipts, again = asyncio.run(work())
    assert description.run_id == "run"
    assert [receipt.duplicate for receipt in receipts] == [False, False]
    assert again.duplicate
    groups = trainer.take_batch(1, wait=30)
    assert [group.group.group_id for group in groups] == ["g0", "g1"]
    assert groups[0].group.payload == b"answer"
    assert groups[0].version_steps == {1: 0}
    assert groups[0].batches[0].sample_indices == (0, 1)
    outcomes = [messages.outcome(group, index) for group in ("g0", "g1") for index in (0, 1)]
    trainer.commit_step(1, outcomes)
    trainer.commit_checkpoint(1, 1)
    trainer.close_run(complete=True)
    with FleetClient(hub_thread.address) as fleet:
        status = fleet.run_status()
        assert status.step == 1
        assert status.training.committed == 2
        kinds = [event.kind for event in fleet.list_events(0)]
        assert kinds == [
            "run_opened",
            "version_published",
            "worker_joined",
            "worker_left",
            "checkpoint",
            "run_closed",
        ]


def test_a_step_that_does_not_fit_into_a_message_is_committed_in_parts(
    hub_thread, trainer, messages, monkeypatch
):
    open_and_publish(trainer, messages)
    trainer.enqueue_groups([messages.group(0), messages.group(1)])

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            worker = await join(client, messages)
            grant = await client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=0)
            for sequence, lease in enumerate(grant.leases):
                await complete(client, messages, worker, lease, sequence)

    asyncio.run(work())
    trainer.take_batch(1, wait=30)
    outcomes = [messages.outcome(group, index) for group in ("g0", "g1") for index in (0, 1)]
    log_probs = float32_column([-float(n) for n in range(8)])
    monkeypatch.setattr(commits, "_OUTCOMES_TOGETHER", 3)
    monkeypatch.setattr(commits, "CHUNK_BYTES", 12)
    monkeypatch.setattr(trainer, "_largest", 100)
    with pytest.raises(RefusedError, match="4 sequences once; 2 given"):
        trainer.commit_step(1, outcomes[:2], log_probs)
    trainer.commit_step(1, outcomes, log_probs)
    trainer.commit_step(1, outcomes, log_probs)  # repeated, as after a lost answer
    stored = asyncio.run_coroutine_threadsafe(
        hub_thread.core.run(lambda context: context.store.commit_of(1)), hub_thread.loop
    ).result(100)
    assert stored.outcomes == tuple(outcomes)
    assert stored.log_probs == log_probs


def test_a_batch_that_is_not_complete_is_an_empty_stream(trainer, messages):
    open_and_publish(trainer, messages)
    assert trainer.take_batch(1, wait=0) is None


def test_finished_groups_are_read_ahead_of_their_batch_and_not_sent_twice(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    trainer.enqueue_groups([messages.group(0), messages.group(1)])

    async def generate(sequence):
        async with RolloutClient(hub_thread.address) as client:
            worker = await join(client, messages)
            grant = await client.lease_work(worker, loaded_weight_version=1, free_sequences=2, wait=30)
            await complete(client, messages, worker, grant.leases[0], sequence)

    assert trainer.take_batch_ahead(1, 0, held=(), at_least=1) == BatchProgress(None, ())
    asyncio.run(generate(0))
    ahead = trainer.take_batch_ahead(1, 30, held=(), at_least=1)
    fewer = trainer.take_batch_ahead(1, 0, held=(), at_least=2)
    held = trainer.take_batch_ahead(1, 0, held=("g0",), at_least=1)
    asyncio.run(generate(1))
    batch = trainer.take_batch_ahead(1, 30, held=("g0",), at_least=9)
    again = trainer.take_batch_ahead(1, 30, held=(), at_least=1)

    assert ahead.group_ids is None
    assert [group.group.group_id for group in ahead.groups] == ["g0"]
    assert fewer == ahead
    assert held == BatchProgress(None, ())
    assert batch.group_ids == ("g0", "g1")
    assert [group.group.group_id for group in batch.groups] == ["g1"]
    assert again == BatchProgress(("g0", "g1"), (*ahead.groups, *batch.groups))


def test_a_long_poll_ends_when_work_arrives(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            worker = await join(client, messages)
            poll = asyncio.create_task(
                client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=30)
            )
            await asyncio.to_thread(trainer.enqueue_groups, [messages.group(0)])
            started = asyncio.get_running_loop().time()
            return await poll, asyncio.get_running_loop().time() - started

    grant, seconds = asyncio.run(work())
    assert [lease.work.group_id for lease in grant.leases] == ["g0"]
    assert seconds < 30


def test_evaluation_groups_are_taken_by_name(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    trainer.enqueue_groups([messages.group(0, Purpose.EVALUATION)])
    assert trainer.take_evaluation(["e0"], wait=0) is None

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            worker = await join(client, messages)
            grant = await client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=0)
            await complete(client, messages, worker, grant.leases[0], 1)

    asyncio.run(work())
    (group,) = trainer.take_evaluation(["e0"], wait=30)
    assert group.group.group_id == "e0"


def test_weights_are_fetched_from_an_offset(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)

    async def fetch():
        async with WeightClient(hub_thread.address) as client:
            assert await client.await_version(0, wait=30) == 1
            (manifest,) = await client.get_plan(
                held_version=0, wanted_version=0, encodings=[WeightEncoding.FULL_RAW]
            )
            return manifest, b"".join(
                [chunk async for chunk in client.fetch_blob(manifest.blobs[0].digest, 4)]
            )

    manifest, data = asyncio.run(fetch())
    assert manifest == messages.manifest(1)
    assert data == messages.weights(1)[4:]


def followed(hub_thread, request):
    """All responses of one call."""
    with grpc.insecure_channel(hub_thread.address) as channel:
        return list(weight_service_pb2_grpc.WeightServiceStub(channel).FollowVersion(request, timeout=90))


def test_weights_follow_the_news_of_them(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    digest = messages.manifest(1).blobs[0].digest
    request = weight_service_pb2.FollowVersionRequest(encodings=[WeightEncoding.FULL_RAW])
    news, *chunks = followed(hub_thread, request)
    assert (news.latest_weight_version, [blob.digest for blob in news.manifests[0].blobs]) == (1, [digest])
    assert b"".join(response.chunk.data for response in chunks) == messages.weights(1)
    assert {response.latest_weight_version for response in chunks} == {0}


def test_without_news_or_without_a_way_the_stream_ends_at_once(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    held = weight_service_pb2.FollowVersionRequest(after_version=1, encodings=[WeightEncoding.FULL_RAW])
    cannot = weight_service_pb2.FollowVersionRequest()
    for request in (held, cannot):
        (news,) = followed(hub_thread, request)
        assert (news.latest_weight_version, len(news.manifests)) == (1, 0)


def test_a_blob_with_other_bytes_is_refused_and_forgotten(trainer, messages):
    trainer.open_run(messages.run_request())
    with pytest.raises(RefusedError) as caught:
        trainer.put_blob(messages.blob(1), iter([messages.weights(2)]))
    assert caught.value.reason == "DIGEST_MISMATCH"
    trainer.put_blob(messages.blob(1), iter([messages.weights(1)]))


def test_a_worker_with_another_model_is_told_both_digests(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    stranger = type(messages.digests)(config="a" * 64, tokenizer="b" * 64)

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            await client.join(messages.join_request(model_digests=stranger))

    with pytest.raises(RefusedError) as caught:
        asyncio.run(work())
    assert caught.value.reason == "MODEL_MISMATCH"
    assert caught.value.details["expected_config_digest"] == "c" * 64
    assert caught.value.details["actual_config_digest"] == "a" * 64


def test_before_a_trainer_opens_the_run_workers_are_told_to_come_back(hub_thread):
    async def work():
        async with RolloutClient(hub_thread.address) as client:
            await client.get_run()

    with pytest.raises(RefusedError) as caught:
        asyncio.run(work())
    assert caught.value.reason == "RUN_NOT_OPEN"


def test_an_older_trainer_is_fenced(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    with TrainingClient(hub_thread.address) as newer:
        newer.open_run(messages.run_request())
        with pytest.raises(FencedError):
            trainer.enqueue_groups([messages.group(0)])


def submit_raw(address, data, name="SubmitResults"):
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_unary(f"/hetero_rl.v1.RolloutService/{name}")
        with pytest.raises(grpc.RpcError) as caught:
            method(data, timeout=100)
        return caught.value.code()


def test_a_malformed_submission_is_an_invalid_argument_and_the_hub_lives(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    empty = rollout_service_pb2.SubmitResultsRequest().SerializeToString()
    assert submit_raw(hub_thread.address, empty) is grpc.StatusCode.INVALID_ARGUMENT
    with FleetClient(hub_thread.address) as fleet:
        assert sum(fleet.run_status().counters.values()) == 1


def test_bytes_that_are_no_message_are_refused_and_the_hub_lives(hub_thread, trainer, messages):
    assert submit_raw(hub_thread.address, b"\xff" * 64) is grpc.StatusCode.INVALID_ARGUMENT
    open_and_publish(trainer, messages)


def test_an_oversized_submission_is_refused_and_the_hub_lives(hub_thread, trainer, messages):
    assert submit_raw(hub_thread.address, b"\x00" * (2**20 + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    open_and_publish(trainer, messages)


def check_health(address, service=b""):
    request = bytes([0x0A, len(service)]) + service if service else b""
    with grpc.insecure_channel(address) as channel:
        return decode_status(channel.unary_unary(CHECK_METHOD)(request, timeout=100))


def test_health_is_serving_for_the_hub_and_each_service(hub_thread):
    assert check_health(hub_thread.address) is ServingStatus.SERVING
    assert check_health(hub_thread.address, b"hetero_rl.v1.RolloutService") is ServingStatus.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check_health(hub_thread.address, b"someone.Else")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_full_disk_is_said_and_shown_until_writing_works_again(hub_thread, trainer, messages):
    trainer.open_run(messages.run_request())

    def still_full():
        raise DiskFullError("still full")

    def fill(context):
        context.store._journal.row("PRAGMA max_page_count=1")  # SQLite keeps the pages that are there
        context.store.probe_write = still_full  # it would fit into one of them

    def free(context):
        context.store._journal.row(f"PRAGMA max_page_count={2**30}")
        del context.store.probe_write

    def run_in_core(*call):
        asyncio.run_coroutine_threadsafe(hub_thread.core.run(*call), hub_thread.loop).result(100)

    with grpc.insecure_channel(hub_thread.address) as channel:
        stream = channel.unary_stream(WATCH_METHOD)(b"", timeout=100)
        assert decode_status(next(stream)) is ServingStatus.SERVING
        run_in_core(fill)
        with pytest.raises(RefusedError) as caught:
            trainer.enqueue_groups([messages.group(0, payload=bytes(2**18))])
        assert caught.value.reason == "STORAGE_FULL"
        assert decode_status(next(stream)) is ServingStatus.NOT_SERVING
        run_in_core(free)
        assert decode_status(next(stream)) is ServingStatus.SERVING
    assert trainer.enqueue_groups([messages.group(0)]).accepted == 1


def test_a_health_watch_hears_of_the_shutdown(hub_thread):
    with grpc.insecure_channel(hub_thread.address) as channel:
        stream = channel.unary_stream(WATCH_METHOD)(b"", timeout=100)
        assert decode_status(next(stream)) is ServingStatus.SERVING
        stopping = threading.Thread(target=hub_thread.stop)
        stopping.start()
        assert decode_status(next(stream)) is ServingStatus.NOT_SERVING
        stopping.join()


def test_the_shutdown_ends_a_long_poll_with_an_answer(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            worker = await join(client, messages)
            poll = asyncio.create_task(
                client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=30)
            )
            await client.get_run()  # the poll was sent before this call on the same connection
            await asyncio.to_thread(hub_thread.stop)
            return await poll

    assert asyncio.run(work()).no_work_reason is NoWorkReason.QUEUE_EMPTY


def test_a_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = Config.model_validate({"hub": {"listen": listen}})

        async def serve():
            async with running_local_hub(config, tmp_path):
                pass

        with pytest.raises(ConfigError, match=listen):
            asyncio.run(serve())


def test_a_foreign_address_without_tls_is_refused(tmp_path):
    config = Config.model_validate({"hub": {"listen": "0.0.0.0:0"}})

    async def serve():
        async with running_local_hub(config, tmp_path):
            pass

    with pytest.raises(ConfigError, match="TLS is off"):
        asyncio.run(serve())


def test_the_address_file_holds_the_picked_port_while_the_hub_serves(tmp_path):
    async def serve():
        async with running_local_hub(Config(), tmp_path) as hub:
            assert (tmp_path / "address").read_text() == f"{hub.address}\n"
            assert not hub.address.endswith(":0")

    asyncio.run(serve())
    assert not (tmp_path / "address").exists()


def test_results_of_several_leases_in_one_call_are_stored_or_refused_one_by_one(
    hub_thread, trainer, messages
):
    open_and_publish(trainer, messages)
    trainer.enqueue_groups([messages.group(0), messages.group(1), messages.group(2)])

    async def work():
        async with RolloutClient(hub_thread.address) as client:
            worker = await join(client, messages)
            grant = await client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=0)
            first, second, third = [
                messages.submission(worker, sequence, lease) for sequence, lease in enumerate(grant.leases)
            ]
            positive = dataclasses.replace(second.results, log_probs=float32_column([0.5] * 4))
            bad = dataclasses.replace(second, results=positive)
            lost = dataclasses.replace(third, lease_id="nobody.0")
            return await client.submit_batch([first, bad, lost]), await client.submit_batch([first, second])

    (stored, wrong, lost), (again, right) = asyncio.run(work())
    assert (stored.duplicate, again.duplicate, right.duplicate) == (False, True, False)
    assert (wrong.reason, wrong.details["field"]) == ("INVALID_FIELD", "TrajectoryBatch.log_probs")
    assert lost.reason == "LEASE_LOST"
    with FleetClient(hub_thread.address) as fleet:
        status = fleet.run_status()
    assert status.training.finished == 2
    assert status.counters["refused_lease_lost"] == 1
    assert status.counters["refused_invalid_field_TrajectoryBatch.log_probs"] == 1


@pytest.mark.parametrize("submissions", [0, 257])
def test_a_call_with_no_results_or_too_many_is_refused(hub_thread, trainer, messages, submissions):
    open_and_publish(trainer, messages)
    request = rollout_service_pb2.SubmitBatchRequest(
        submissions=[rollout_service_pb2.SubmitResultsRequest()] * submissions
    )
    assert submit_raw(hub_thread.address, request.SerializeToString(), "SubmitBatch") is (
        grpc.StatusCode.INVALID_ARGUMENT
    )


def test_results_of_one_call_may_take_together_what_one_may(hub_thread, trainer, messages):
    open_and_publish(trainer, messages)
    tokens = 2**18  # of 2^19 that one submission may have; the columns are deflated to next to nothing
    batch = trajectory_pb2.TrajectoryBatch(sample_indices=[0], finish_reasons=[2])
    batch.lengths.CopyFrom(encode_column(int32_column([tokens]), DataType.INT32))
    zeros = encode_column(bytes(4 * tokens), DataType.INT32, ColumnEncoding.BYTE_PLANES)
    batch.token_ids.CopyFrom(zeros)
    zeros.data_type = columns_pb2.DATA_TYPE_FLOAT32
    batch.log_probs.CopyFrom(zeros)
    worker = rollout_service_pb2.WorkerIdentity(worker_name="w1", worker_epoch=1)
    one = rollout_service_pb2.SubmitResultsRequest(worker=worker, trajectories=batch)
    request = rollout_service_pb2.SubmitBatchRequest(submissions=[one] * 4)
    with grpc.insecure_channel(hub_thread.address) as channel:
        method = channel.unary_unary("/hetero_rl.v1.RolloutService/SubmitBatch")
        answer = rollout_service_pb2.SubmitBatchResponse.FromString(
            method(request.SerializeToString(), timeout=100)
        )
    reasons = [int(outcome.refusal.refusal.reason) for outcome in answer.outcomes]
    too_large = errors_pb2.REFUSAL_REASON_TOO_LARGE
    assert [reason == too_large for reason in reasons] == [False, False, True, True]


def start_and_stop(directory):
    async def serve():
        async with running_local_hub(Config(), directory):
            pass

    asyncio.run(serve())


def test_a_hub_does_not_start_with_an_index_that_contradicts_its_table(tmp_path):
    start_and_stop(tmp_path)
    path = tmp_path / "journal.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO groups VALUES ('needle', 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, NULL)")
    content = path.read_bytes()
    assert content.count(b"needle") > 1
    path.write_bytes(content.replace(b"needle", b"beetle", 1))
    with pytest.raises(DamagedJournalError, match=r"journal.sqlite is damaged: .*index"):
        start_and_stop(tmp_path)
    assert not (tmp_path / "address").exists()


def test_a_hub_does_not_begin_anew_where_blobs_of_a_run_are(tmp_path):
    start_and_stop(tmp_path)
    (tmp_path / "blobs" / ("a" * 64)).write_bytes(b"1234")
    (tmp_path / "journal.sqlite").unlink()
    with pytest.raises(DamagedJournalError, match="empty or gone"):
        start_and_stop(tmp_path)
