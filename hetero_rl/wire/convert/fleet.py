"""What people and dashboards see: proto <-> frozen values."""

from google.protobuf import timestamp_pb2

from hetero_rl.v1 import fleet_service_pb2
from hetero_rl.wire.columns import Float32Bytes, Int32Bytes
from hetero_rl.wire.convert import fields
from hetero_rl.wire.convert.run import run_description_from_proto, run_description_to_proto
from hetero_rl.wire.convert.trajectories import score_batch_from_proto, score_batch_to_proto
from hetero_rl.wire.convert.weights import probe_result_from_proto, probe_result_to_proto
from hetero_rl.wire.convert.work import lengths_of
from hetero_rl.wire.convert.workers import (
    capabilities_from_proto,
    capabilities_to_proto,
    numerics_from_proto,
    numerics_to_proto,
)
from hetero_rl.wire.messages import (
    DataType,
    Event,
    ProbeCard,
    QueueCounts,
    RunStatus,
    ScoreStatus,
    WorkerState,
    WorkerSummary,
)

__all__ = [
    "calibration_card_from_proto",
    "event_from_proto",
    "event_to_proto",
    "run_status_from_proto",
    "run_status_to_proto",
    "score_status_from_proto",
    "score_status_to_proto",
    "worker_summary_from_proto",
    "worker_summary_to_proto",
]

_NANOS = 1_000_000_000


def worker_summary_to_proto(worker: WorkerSummary) -> fleet_service_pb2.WorkerSummary:
    """Packs one worker as the hub sees it."""
    message = fleet_service_pb2.WorkerSummary(
        worker_name=worker.worker_name,
        worker_epoch=worker.worker_epoch,
        backend=worker.backend,
        state=f"WORKER_STATE_{worker.state.name}",
        state_reason=worker.state_reason,
        capabilities=capabilities_to_proto(worker.capabilities),
        numerics=numerics_to_proto(worker.numerics),
        loaded_weight_version=worker.loaded_weight_version,
        leases=worker.leases,
        completions=worker.completions,
        generated_tokens=worker.generated_tokens,
        busy_seconds=worker.busy_seconds,
        silence=fields.duration_to_proto(worker.silence),
    )
    if worker.last_probe is not None:
        message.last_probe.CopyFrom(probe_result_to_proto(worker.last_probe))
    return message


def worker_summary_from_proto(message: fleet_service_pb2.WorkerSummary) -> WorkerSummary:
    """Unpacks one worker as the hub sees it."""
    for field in ("capabilities", "numerics"):
        fields.require(message, field)
    probe = probe_result_from_proto(message.last_probe) if message.HasField("last_probe") else None
    return WorkerSummary(
        worker_name=message.worker_name,
        worker_epoch=message.worker_epoch,
        backend=message.backend,
        state=fields.member_of(WorkerState, message, "state"),
        state_reason=message.state_reason,
        capabilities=capabilities_from_proto(message.capabilities),
        numerics=numerics_from_proto(message.numerics),
        loaded_weight_version=message.loaded_weight_version,
        leases=message.leases,
        completions=message.completions,
        generated_tokens=message.generated_tokens,
        busy_seconds=fields.finite_of(message, "busy_seconds"),
        silence=fields.seconds_of(message, "silence"),
        last_probe=probe,
    )


def queue_counts_to_proto(counts: QueueCounts) -> fleet_service_pb2.QueueCounts:
    """Packs numbers of groups."""
    return fleet_service_pb2.QueueCounts(
        queued=counts.queued,
        leased=counts.leased,
        finished=counts.finished,
        taken=counts.taken,
        committed=counts.committed,
    )


def queue_counts_from_proto(message: fleet_service_pb2.QueueCounts) -> QueueCounts:
    """Unpacks numbers of groups."""
    return QueueCounts(
        queued=message.queued,
        leased=message.leased,
        finished=message.finished,
        taken=message.taken,
        committed=message.committed,
    )


def run_status_to_proto(status: RunStatus) -> fleet_service_pb2.GetRunStatusResponse:
    """Packs the run at a glance."""
    message = fleet_service_pb2.GetRunStatusResponse(
        step=status.step,
        total_steps=status.total_steps,
        training=queue_counts_to_proto(status.training),
        evaluation=queue_counts_to_proto(status.evaluation),
        counters=dict(status.counters),
        trainer_connected=status.trainer_connected,
        uptime=fields.duration_to_proto(status.uptime),
        groups_per_step=status.groups_per_step,
        max_lag=status.max_lag,
    )
    if status.run is not None:
        message.run.CopyFrom(run_description_to_proto(status.run))
    return message


def run_status_from_proto(message: fleet_service_pb2.GetRunStatusResponse) -> RunStatus:
    """Unpacks the run at a glance."""
    return RunStatus(
        run=run_description_from_proto(message.run) if message.HasField("run") else None,
        step=message.step,
        total_steps=message.total_steps,
        training=queue_counts_from_proto(message.training),
        evaluation=queue_counts_from_proto(message.evaluation),
        counters=dict(message.counters),
        trainer_connected=message.trainer_connected,
        uptime=fields.seconds_of(message, "uptime"),
        groups_per_step=message.groups_per_step,
        max_lag=message.max_lag,
    )


def event_to_proto(event: Event) -> fleet_service_pb2.Event:
    """Packs an event."""
    seconds, nanos = divmod(round(event.occurred_at * _NANOS), _NANOS)
    return fleet_service_pb2.Event(
        sequence=event.sequence,
        occur_time=timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos),
        kind=event.kind,
        worker_name=event.worker_name,
        message=event.message,
    )


def event_from_proto(message: fleet_service_pb2.Event) -> Event:
    """Unpacks an event."""
    return Event(
        sequence=message.sequence,
        occurred_at=(message.occur_time.seconds * _NANOS + message.occur_time.nanos) / _NANOS,
        kind=message.kind,
        worker_name=message.worker_name,
        message=message.message,
    )


def score_status_to_proto(status: ScoreStatus) -> fleet_service_pb2.GetScoreResponse:
    """Packs what became of a score."""
    message = fleet_service_pb2.GetScoreResponse(worker_name=status.worker_name, failure=status.failure)
    if status.scores is not None:
        message.scores.CopyFrom(score_batch_to_proto(status.scores))
    return message


def score_status_from_proto(message: fleet_service_pb2.GetScoreResponse) -> ScoreStatus:
    """Unpacks what became of a score."""
    scores = score_batch_from_proto(message.scores) if message.HasField("scores") else None
    return ScoreStatus(worker_name=message.worker_name, scores=scores, failure=message.failure)


def calibration_card_from_proto(message: fleet_service_pb2.RequestCalibrationRequest) -> ProbeCard:
    """Unpacks the sequences of a calibration; log-probabilities, which it need not have, are left out."""
    lengths = lengths_of(message.card, "lengths")
    token_ids = fields.column_of(message.card, "token_ids", DataType.INT32, length=sum(lengths))
    return ProbeCard(
        lengths=lengths, token_ids=Int32Bytes(token_ids), log_probs=Float32Bytes(b""), tolerance=1.0
    )
