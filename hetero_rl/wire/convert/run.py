"""The run and its limits: proto <-> frozen values."""

from hetero_rl.v1 import rollout_service_pb2, training_service_pb2
from hetero_rl.wire.convert import fields
from hetero_rl.wire.convert.weights import model_file_from_proto, model_file_to_proto
from hetero_rl.wire.convert.work import sampling_from_proto, sampling_to_proto
from hetero_rl.wire.convert.workers import model_digests_from_proto, model_digests_to_proto
from hetero_rl.wire.messages import EnqueueReceipt, Limits, RunDescription, RunGrant, RunRequest

__all__ = [
    "enqueue_receipt_from_proto",
    "enqueue_receipt_to_proto",
    "limits_from_proto",
    "limits_to_proto",
    "run_description_from_proto",
    "run_description_to_proto",
    "run_grant_from_proto",
    "run_grant_to_proto",
    "run_request_from_proto",
    "run_request_to_proto",
]


def limits_to_proto(limits: Limits) -> rollout_service_pb2.Limits:
    """Packs limits."""
    return rollout_service_pb2.Limits(
        max_message_bytes=limits.max_message_bytes,
        max_prompt_tokens=limits.max_prompt_tokens,
        max_completion_tokens=limits.max_completion_tokens,
        max_group_size=limits.max_group_size,
        vocabulary_size=limits.vocabulary_size,
    )


def limits_from_proto(message: rollout_service_pb2.Limits) -> Limits:
    """Unpacks limits, each at least 1."""
    return Limits(
        max_message_bytes=fields.count_of(message, "max_message_bytes", 1),
        max_prompt_tokens=fields.count_of(message, "max_prompt_tokens", 1),
        max_completion_tokens=fields.count_of(message, "max_completion_tokens", 1),
        max_group_size=fields.count_of(message, "max_group_size", 1),
        vocabulary_size=fields.count_of(message, "vocabulary_size", 1),
    )


def run_description_to_proto(run: RunDescription) -> rollout_service_pb2.RunDescription:
    """Packs what a run samples with and what its workers load."""
    return rollout_service_pb2.RunDescription(
        run_id=run.run_id,
        model_digests=model_digests_to_proto(run.model_digests),
        model_files=[model_file_to_proto(file) for file in run.model_files],
        sampling=sampling_to_proto(run.sampling),
        limits=limits_to_proto(run.limits),
        latest_weight_version=run.latest_weight_version,
        adapter_weights=run.adapter_weights,
    )


def run_description_from_proto(message: rollout_service_pb2.RunDescription) -> RunDescription:
    """Unpacks what a run samples with and what its workers load."""
    for field in ("model_digests", "sampling", "limits"):
        fields.require(message, field)
    return RunDescription(
        run_id=message.run_id,
        model_digests=model_digests_from_proto(message.model_digests),
        model_files=tuple(model_file_from_proto(file) for file in message.model_files),
        sampling=sampling_from_proto(message.sampling),
        limits=limits_from_proto(message.limits),
        latest_weight_version=message.latest_weight_version,
        adapter_weights=message.adapter_weights,
    )


def run_request_to_proto(request: RunRequest) -> training_service_pb2.OpenRunRequest:
    """Packs what a trainer opens a run with."""
    return training_service_pb2.OpenRunRequest(
        run_id=request.run_id,
        resume_step=request.resume_step,
        groups_per_step=request.groups_per_step,
        max_lag=request.max_lag,
        model_digests=model_digests_to_proto(request.model_digests),
        model_files=[model_file_to_proto(file) for file in request.model_files],
        sampling=sampling_to_proto(request.sampling),
        limits=limits_to_proto(request.limits),
        config_json=request.config_json,
        software_version=request.software_version,
        total_steps=request.total_steps,
        adapter_weights=request.adapter_weights,
    )


def run_request_from_proto(message: training_service_pb2.OpenRunRequest) -> RunRequest:
    """Unpacks what a trainer opens a run with."""
    for field in ("model_digests", "sampling", "limits"):
        fields.require(message, field)
    return RunRequest(
        run_id=message.run_id,
        resume_step=message.resume_step,
        groups_per_step=fields.count_of(message, "groups_per_step", 1),
        max_lag=message.max_lag,
        total_steps=message.total_steps,
        model_digests=model_digests_from_proto(message.model_digests),
        model_files=tuple(model_file_from_proto(file) for file in message.model_files),
        sampling=sampling_from_proto(message.sampling),
        limits=limits_from_proto(message.limits),
        config_json=message.config_json,
        software_version=message.software_version,
        adapter_weights=message.adapter_weights,
    )


def run_grant_to_proto(grant: RunGrant) -> training_service_pb2.OpenRunResponse:
    """Packs the answer to a trainer that opened a run."""
    return training_service_pb2.OpenRunResponse(
        trainer_epoch=grant.trainer_epoch,
        latest_weight_version=grant.latest_weight_version,
        latest_state_digest=grant.latest_state_digest,
        next_train_ordinal=grant.next_train_ordinal,
        credits=grant.credits,
        adapter_weights=grant.adapter_weights,
    )


def run_grant_from_proto(message: training_service_pb2.OpenRunResponse) -> RunGrant:
    """Unpacks the answer to a trainer that opened a run."""
    return RunGrant(
        trainer_epoch=fields.count_of(message, "trainer_epoch", 1),
        latest_weight_version=message.latest_weight_version,
        latest_state_digest=message.latest_state_digest,
        next_train_ordinal=message.next_train_ordinal,
        credits=message.credits,
        adapter_weights=message.adapter_weights,
    )


def enqueue_receipt_to_proto(receipt: EnqueueReceipt) -> training_service_pb2.EnqueueGroupsResponse:
    """Packs the answer to enqueued groups."""
    return training_service_pb2.EnqueueGroupsResponse(accepted=receipt.accepted, credits=receipt.credits)


def enqueue_receipt_from_proto(message: training_service_pb2.EnqueueGroupsResponse) -> EnqueueReceipt:
    """Unpacks the answer to enqueued groups."""
    return EnqueueReceipt(accepted=message.accepted, credits=message.credits)
