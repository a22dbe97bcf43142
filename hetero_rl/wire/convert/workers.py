"""What a worker says of itself and what it is told: proto <-> frozen values."""

from hetero_rl.v1 import rollout_service_pb2, worker_pb2
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.convert import fields
from hetero_rl.wire.convert.trajectories import (
    fill_trajectory_batch,
    score_batch_from_proto,
    score_batch_to_proto,
    trajectory_batch_from_proto,
)
from hetero_rl.wire.convert.weights import weight_sync_from_proto, weight_sync_to_proto
from hetero_rl.wire.convert.work import lease_from_proto, lease_to_proto
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    Capabilities,
    Heartbeat,
    HeartbeatReply,
    JoinGrant,
    JoinRequest,
    LeaseGrant,
    ModelDigests,
    NoWorkReason,
    NumericsRecord,
    ScoreBatch,
    Submission,
    SubmissionReceipt,
    TrajectoryBatch,
    WorkerIdentity,
    WorkerState,
)

__all__ = [
    "MAX_WEIGHT_SYNCS",
    "capabilities_from_proto",
    "capabilities_to_proto",
    "heartbeat_from_proto",
    "heartbeat_reply_from_proto",
    "heartbeat_reply_to_proto",
    "heartbeat_to_proto",
    "identity_from_proto",
    "identity_to_proto",
    "join_grant_from_proto",
    "join_grant_to_proto",
    "join_request_from_proto",
    "join_request_to_proto",
    "lease_grant_from_proto",
    "lease_grant_to_proto",
    "model_digests_from_proto",
    "model_digests_to_proto",
    "numerics_from_proto",
    "numerics_to_proto",
    "receipt_from_proto",
    "receipt_to_proto",
    "submission_from_proto",
    "submission_to_proto",
]

MAX_WEIGHT_SYNCS = 64
"""Most versions that one heartbeat reports."""


def identity_to_proto(worker: WorkerIdentity) -> rollout_service_pb2.WorkerIdentity:
    """Packs who is calling."""
    return rollout_service_pb2.WorkerIdentity(
        worker_name=worker.worker_name, worker_epoch=worker.worker_epoch
    )


def identity_from_proto(message: rollout_service_pb2.WorkerIdentity) -> WorkerIdentity:
    """Unpacks who is calling."""
    if not message.worker_name:
        raise invalid("WorkerIdentity.worker_name", "is empty")
    return WorkerIdentity(message.worker_name, fields.count_of(message, "worker_epoch", 1))


def capabilities_to_proto(capabilities: Capabilities) -> worker_pb2.Capabilities:
    """Packs what an engine can do."""
    return worker_pb2.Capabilities(
        max_concurrent_sequences=capabilities.max_concurrent_sequences,
        max_sequence_tokens=capabilities.max_sequence_tokens,
        scoring=capabilities.scoring,
        in_flight_update=capabilities.in_flight_update,
        processed_log_probs=capabilities.processed_log_probs,
        adapters=capabilities.adapters,
        routed_experts=capabilities.routed_experts,
        weight_encodings=capabilities.weight_encodings,
    )


def capabilities_from_proto(message: worker_pb2.Capabilities) -> Capabilities:
    """Unpacks what an engine can do."""
    return Capabilities(
        max_concurrent_sequences=fields.count_of(message, "max_concurrent_sequences", 1),
        max_sequence_tokens=fields.count_of(message, "max_sequence_tokens", 1),
        scoring=message.scoring,
        in_flight_update=message.in_flight_update,
        processed_log_probs=message.processed_log_probs,
        adapters=message.adapters,
        routed_experts=message.routed_experts,
        weight_encodings=tuple(message.weight_encodings),
    )


def numerics_to_proto(record: NumericsRecord) -> worker_pb2.NumericsRecord:
    """Packs what the numbers depend on."""
    return worker_pb2.NumericsRecord(
        numerics_id=record.numerics_id,
        engine=record.engine,
        engine_version=record.engine_version,
        torch_version=record.torch_version,
        device_vendor=record.device_vendor,
        device_name=record.device_name,
        driver_version=record.driver_version,
        runtime_version=record.runtime_version,
        data_type=record.data_type,
        attention_backend=record.attention_backend,
        log_probs_mode=record.log_probs_mode,
        knobs=dict(record.knobs),
        emulated=record.emulated,
    )


def numerics_from_proto(message: worker_pb2.NumericsRecord) -> NumericsRecord:
    """Unpacks what the numbers depend on; refuses an id that is not the hash of the rest."""
    record = NumericsRecord(
        engine=message.engine,
        engine_version=message.engine_version,
        torch_version=message.torch_version,
        device_vendor=message.device_vendor,
        device_name=message.device_name,
        driver_version=message.driver_version,
        runtime_version=message.runtime_version,
        data_type=message.data_type,
        attention_backend=message.attention_backend,
        log_probs_mode=message.log_probs_mode,
        knobs=dict(message.knobs),
        emulated=message.emulated,
    )
    if record.numerics_id != message.numerics_id:
        raise invalid(
            "NumericsRecord.numerics_id",
            f"is {message.numerics_id!r}, the other fields hash to {record.numerics_id!r}",
        )
    return record


def model_digests_to_proto(digests: ModelDigests) -> worker_pb2.ModelDigests:
    """Packs a model's digests."""
    return worker_pb2.ModelDigests(config=digests.config, tokenizer=digests.tokenizer)


def model_digests_from_proto(message: worker_pb2.ModelDigests) -> ModelDigests:
    """Unpacks a model's digests."""
    return ModelDigests(config=message.config, tokenizer=message.tokenizer)


def join_request_to_proto(request: JoinRequest) -> rollout_service_pb2.JoinRequest:
    """Packs what a worker says of itself."""
    return rollout_service_pb2.JoinRequest(
        run_id=request.run_id,
        worker_name=request.worker_name,
        boot_id=request.boot_id,
        backend=request.backend,
        software_version=request.software_version,
        capabilities=capabilities_to_proto(request.capabilities),
        numerics=numerics_to_proto(request.numerics),
        model_digests=model_digests_to_proto(request.model_digests),
    )


def join_request_from_proto(message: rollout_service_pb2.JoinRequest) -> JoinRequest:
    """Unpacks what a worker says of itself."""
    for field in ("capabilities", "numerics", "model_digests"):
        fields.require(message, field)
    return JoinRequest(
        run_id=message.run_id,
        worker_name=message.worker_name,
        boot_id=message.boot_id,
        backend=message.backend,
        software_version=message.software_version,
        capabilities=capabilities_from_proto(message.capabilities),
        numerics=numerics_from_proto(message.numerics),
        model_digests=model_digests_from_proto(message.model_digests),
    )


def join_grant_to_proto(grant: JoinGrant) -> rollout_service_pb2.JoinResponse:
    """Packs the answer to a worker that joined."""
    return rollout_service_pb2.JoinResponse(
        worker_epoch=grant.worker_epoch,
        lease_duration=fields.duration_to_proto(grant.lease_duration),
        heartbeat_interval=fields.duration_to_proto(grant.heartbeat_interval),
        dead_after=fields.duration_to_proto(grant.dead_after),
        latest_weight_version=grant.latest_weight_version,
    )


def join_grant_from_proto(message: rollout_service_pb2.JoinResponse) -> JoinGrant:
    """Unpacks the answer to a worker that joined."""
    return JoinGrant(
        worker_epoch=fields.count_of(message, "worker_epoch", 1),
        lease_duration=fields.seconds_of(message, "lease_duration"),
        heartbeat_interval=fields.seconds_of(message, "heartbeat_interval"),
        dead_after=fields.seconds_of(message, "dead_after"),
        latest_weight_version=message.latest_weight_version,
    )


def lease_grant_to_proto(
    grant: LeaseGrant, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> rollout_service_pb2.LeaseWorkResponse:
    """Packs leased work."""
    reason = grant.no_work_reason
    return rollout_service_pb2.LeaseWorkResponse(
        leases=[lease_to_proto(lease, encoding) for lease in grant.leases],
        no_work_reason="NO_WORK_REASON_UNSPECIFIED" if reason is None else f"NO_WORK_REASON_{reason.name}",
        min_weight_version=grant.min_weight_version,
        latest_weight_version=grant.latest_weight_version,
    )


def lease_grant_from_proto(message: rollout_service_pb2.LeaseWorkResponse) -> LeaseGrant:
    """Unpacks leased work; a reason that this side does not know reads as none given."""
    known = {reason.value: reason for reason in NoWorkReason}
    return LeaseGrant(
        leases=tuple(lease_from_proto(lease) for lease in message.leases),
        no_work_reason=known.get(int(message.no_work_reason)),
        min_weight_version=message.min_weight_version,
        latest_weight_version=message.latest_weight_version,
    )


def submission_to_proto(
    submission: Submission, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> rollout_service_pb2.SubmitResultsRequest:
    """Packs results of a lease."""
    message = rollout_service_pb2.SubmitResultsRequest(
        worker=identity_to_proto(submission.worker),
        sequence=submission.sequence,
        lease_id=submission.lease_id,
        final=submission.final,
    )
    if isinstance(submission.results, TrajectoryBatch):
        message.trajectories.SetInParent()
        fill_trajectory_batch(message.trajectories, submission.results, encoding)
    else:
        message.scores.CopyFrom(score_batch_to_proto(submission.results, encoding))
    return message


def submission_from_proto(
    message: rollout_service_pb2.SubmitResultsRequest, *, max_tokens: int | None = None
) -> Submission:
    """Unpacks results of a lease.

    Args:
        message: May be hostile.
        max_tokens: Most tokens of the whole submission.
    """
    fields.require(message, "worker")
    results: TrajectoryBatch | ScoreBatch
    match message.WhichOneof("results"):
        case "trajectories":
            results = trajectory_batch_from_proto(message.trajectories, max_tokens=max_tokens)
        case "scores":
            results = score_batch_from_proto(message.scores, max_tokens=max_tokens)
        case _:
            raise invalid("SubmitResultsRequest.results", "is missing")
    return Submission(
        worker=identity_from_proto(message.worker),
        sequence=message.sequence,
        lease_id=message.lease_id,
        final=message.final,
        results=results,
    )


def receipt_to_proto(receipt: SubmissionReceipt) -> rollout_service_pb2.SubmitResultsResponse:
    """Packs the answer to a submission."""
    return rollout_service_pb2.SubmitResultsResponse(duplicate=receipt.duplicate, credits=receipt.credits)


def receipt_from_proto(message: rollout_service_pb2.SubmitResultsResponse) -> SubmissionReceipt:
    """Unpacks the answer to a submission."""
    return SubmissionReceipt(duplicate=message.duplicate, credits=message.credits)


def heartbeat_to_proto(heartbeat: Heartbeat) -> rollout_service_pb2.HeartbeatRequest:
    """Packs signs of life."""
    return rollout_service_pb2.HeartbeatRequest(
        worker=identity_to_proto(heartbeat.worker),
        lease_ids=heartbeat.lease_ids,
        loaded_weight_version=heartbeat.loaded_weight_version,
        generated_tokens=heartbeat.generated_tokens,
        busy_seconds=heartbeat.busy_seconds,
        weight_syncs=[weight_sync_to_proto(sync) for sync in heartbeat.weight_syncs],
    )


def heartbeat_from_proto(message: rollout_service_pb2.HeartbeatRequest) -> Heartbeat:
    """Unpacks signs of life."""
    fields.require(message, "worker")
    if len(message.weight_syncs) > MAX_WEIGHT_SYNCS:
        raise invalid(
            "HeartbeatRequest.weight_syncs",
            f"has {len(message.weight_syncs)} entries, at most {MAX_WEIGHT_SYNCS} fit",
            "TOO_LARGE",
        )
    return Heartbeat(
        worker=identity_from_proto(message.worker),
        lease_ids=tuple(message.lease_ids),
        loaded_weight_version=message.loaded_weight_version,
        generated_tokens=message.generated_tokens,
        busy_seconds=fields.finite_of(message, "busy_seconds"),
        weight_syncs=tuple(weight_sync_from_proto(sync) for sync in message.weight_syncs),
    )


def heartbeat_reply_to_proto(reply: HeartbeatReply) -> rollout_service_pb2.HeartbeatResponse:
    """Packs the answer to signs of life."""
    return rollout_service_pb2.HeartbeatResponse(
        lost_lease_ids=reply.lost_lease_ids,
        latest_weight_version=reply.latest_weight_version,
        state=f"WORKER_STATE_{reply.state.name}",
    )


def heartbeat_reply_from_proto(message: rollout_service_pb2.HeartbeatResponse) -> HeartbeatReply:
    """Unpacks the answer to signs of life."""
    return HeartbeatReply(
        lost_lease_ids=tuple(message.lost_lease_ids),
        latest_weight_version=message.latest_weight_version,
        state=fields.member_of(WorkerState, message, "state"),
    )
