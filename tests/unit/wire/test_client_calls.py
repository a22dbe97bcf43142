"""Each method of a client makes one call, with the request that the protocol describes."""

import grpc
import pytest

from hetero_rl.v1 import fleet_service_pb2 as fleet
from hetero_rl.v1 import rollout_service_pb2 as rollout
from hetero_rl.v1 import training_service_pb2 as training
from hetero_rl.v1 import weights_pb2
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.convert.fleet import event_to_proto
from hetero_rl.wire.convert.run import run_description_to_proto, run_request_to_proto
from hetero_rl.wire.messages import (
    Disposition,
    Event,
    Heartbeat,
    HeartbeatReply,
    Limits,
    ModelDigests,
    ProbeResult,
    RunDescription,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
    WorkerState,
)


class Recorder(grpc.GenericRpcHandler):
    """Answers every unary call with prepared bytes, and keeps the requests."""

    def __init__(self):
        self.answers = {}
        self.calls = []

    def service(self, handler_call_details):
        method = handler_call_details.method.rpartition("/")[2]

        def answer(request, context):
            self.calls.append((method, request))
            return self.answers.get(method, b"")

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def address(serve, recorder):
    return serve(lambda server: server.add_generic_rpc_handlers((recorder,)), fleet=False)


SAMPLING = SamplingParameters(max_new_tokens=4, stop_token_ids=(2,))
LIMITS = Limits(
    max_message_bytes=2**20, max_prompt_tokens=8, max_completion_tokens=4, max_group_size=2, vocabulary_size=9
)
RUN = RunRequest(
    run_id="r", groups_per_step=2, max_lag=1, total_steps=5, model_digests=ModelDigests("c", "t"), model_files=(),
    sampling=SAMPLING, limits=LIMITS, config_json="{}", software_version="0",
)  # fmt: skip
OUTCOME = SequenceOutcome(
    group_id="g", sample_index=1, reward=1.0, advantage=0.5, log_importance_ratio=-0.25, coefficient=1.0,
    mean_absolute_gap=0.0, max_absolute_gap=0.0, lag=1, disposition=Disposition.TRAINED,
)  # fmt: skip
MANIFEST = WeightManifest(
    version=3, step=2, encoding=WeightEncoding.FULL_RAW, tensors=(), blobs=(), state_digest="d"
)


@pytest.fixture
def trainer(address, recorder):
    recorder.answers["OpenRun"] = training.OpenRunResponse(trainer_epoch=7, credits=3).SerializeToString()
    with TrainingClient(address) as client:
        assert client.open_run(RUN).credits == 3
        recorder.calls.clear()
        yield client


def test_a_run_is_opened_with_everything_that_the_trainer_knows(address, recorder):
    recorder.answers["OpenRun"] = training.OpenRunResponse(trainer_epoch=1).SerializeToString()
    with TrainingClient(address) as client:
        client.open_run(RUN)
    assert recorder.calls == [("OpenRun", run_request_to_proto(RUN).SerializeToString())]


def test_a_commit_carries_epoch_outcomes_and_log_probabilities(trainer, recorder):
    trainer.commit_step(4, [OUTCOME], float32_column([-0.5, -1.0]))
    ((method, packed),) = recorder.calls
    request = training.CommitStepRequest.FromString(packed)
    assert (method, request.trainer_epoch, request.step) == ("CommitStep", 7, 4)
    assert list(request.outcomes.group_ids) == ["g"]
    assert request.log_probs.data == float32_column([-0.5, -1.0])


def test_a_commit_without_log_probabilities_says_that_there_are_none(trainer, recorder):
    trainer.commit_step(4, [])
    assert not training.CommitStepRequest.FromString(recorder.calls[0][1]).HasField("log_probs")


def test_later_calls_of_the_trainer_carry_its_epoch(trainer, recorder):
    trainer.publish_version(MANIFEST)
    trainer.commit_checkpoint(8, 6)
    trainer.close_run(complete=True)
    manifest = weights_pb2.WeightManifest(version=3, step=2, encoding=1, state_digest="d")
    expected = [
        ("PublishVersion", training.PublishVersionRequest(trainer_epoch=7, manifest=manifest)),
        ("CommitCheckpoint", training.CommitCheckpointRequest(trainer_epoch=7, step=8, oldest_kept_step=6)),
        ("CloseRun", training.CloseRunRequest(trainer_epoch=7, complete=True)),
    ]
    assert recorder.calls == [(method, request.SerializeToString()) for method, request in expected]


def test_people_name_the_worker_that_they_mean(address, recorder):
    with FleetClient(address) as client:
        client.drain_worker("a")
        client.quarantine_worker("b", "hot")
        client.readmit_worker("c")
        assert client.list_workers(include_gone=True) == ()
    expected = [
        ("DrainWorker", fleet.DrainWorkerRequest(worker_name="a")),
        ("QuarantineWorker", fleet.QuarantineWorkerRequest(worker_name="b", reason="hot")),
        ("ReadmitWorker", fleet.ReadmitWorkerRequest(worker_name="c")),
        ("ListWorkers", fleet.ListWorkersRequest(include_gone=True)),
    ]
    assert recorder.calls == [(method, request.SerializeToString()) for method, request in expected]


def test_events_are_read_from_a_position_on(address, recorder):
    event = Event(sequence=5, occurred_at=1.5, kind="worker_joined", worker_name="a", message="hello")
    recorder.answers["ListEvents"] = fleet.ListEventsResponse(
        events=[event_to_proto(event)]
    ).SerializeToString()
    with FleetClient(address) as client:
        assert client.list_events(4, limit=2) == (event,)
    expected = fleet.ListEventsRequest(after_sequence=4, limit=2)
    assert recorder.calls == [("ListEvents", expected.SerializeToString())]


WORKER = WorkerIdentity("w", 2)
IDENTITY = rollout.WorkerIdentity(worker_name="w", worker_epoch=2)


@pytest.mark.asyncio
async def test_the_run_is_described_to_a_worker(address, recorder):
    description = RunDescription(
        run_id="r", model_digests=ModelDigests("c", "t"), model_files=(), sampling=SAMPLING, limits=LIMITS,
        latest_weight_version=3,
    )  # fmt: skip
    answer = rollout.GetRunResponse(run=run_description_to_proto(description))
    recorder.answers["GetRun"] = answer.SerializeToString()
    async with RolloutClient(address) as client:
        assert await client.get_run() == description


@pytest.mark.asyncio
async def test_a_heartbeat_names_the_leases_that_are_worked_on(address, recorder):
    answer = rollout.HeartbeatResponse(lost_lease_ids=["l1"], latest_weight_version=4, state=2)
    recorder.answers["Heartbeat"] = answer.SerializeToString()
    heartbeat = Heartbeat(
        worker=WORKER, lease_ids=("l1", "l2"), loaded_weight_version=3, generated_tokens=9, busy_seconds=0.5
    )
    async with RolloutClient(address) as client:
        reply = await client.heartbeat(heartbeat)
    assert reply == HeartbeatReply(
        lost_lease_ids=("l1",), latest_weight_version=4, state=WorkerState.DRAINING
    )
    expected = rollout.HeartbeatRequest(
        worker=IDENTITY, lease_ids=["l1", "l2"], loaded_weight_version=3, generated_tokens=9, busy_seconds=0.5
    )
    assert recorder.calls == [("Heartbeat", expected.SerializeToString())]


@pytest.mark.asyncio
async def test_a_probe_that_is_not_accepted_is_false(address, recorder):
    result = ProbeResult(
        weight_version=3,
        mean_absolute_difference=0.5,
        max_absolute_difference=1.0,
        mean_difference=0.25,
        tokens=2,
    )
    async with RolloutClient(address) as client:
        assert await client.report_probe(WORKER, result, "n") is False
        recorder.answers["ReportProbe"] = rollout.ReportProbeResponse(accepted=True).SerializeToString()
        assert await client.report_probe(WORKER, result, "n") is True
    request = rollout.ReportProbeRequest.FromString(recorder.calls[0][1])
    assert (request.numerics_id, request.result.mean_difference) == ("n", 0.25)


@pytest.mark.asyncio
async def test_a_worker_says_why_it_leaves(address, recorder):
    async with RolloutClient(address) as client:
        await client.leave(WORKER, "spot instance ends")
    expected = rollout.LeaveRequest(worker=IDENTITY, reason="spot instance ends")
    assert recorder.calls == [("Leave", expected.SerializeToString())]
