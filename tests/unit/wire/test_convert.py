"""Every message crosses the wire unchanged, in both column encodings."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_rl.v1 import (
    fleet_service_pb2,
    rollout_service_pb2,
    training_service_pb2,
    trajectory_pb2,
    weights_pb2,
    work_pb2,
    worker_pb2,
)
from hetero_rl.wire import messages as m
from hetero_rl.wire.column_codec import ColumnEncoding
from hetero_rl.wire.columns import UInt8Bytes, float32_column, int32_column
from hetero_rl.wire.convert import fleet, run, trajectories, weights, work, workers

names = st.text(min_size=1, max_size=12)
texts = st.text(max_size=12)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
positive = st.integers(1, 2**32 - 1)
flags = st.booleans()
numbers = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
ids = st.integers(-(2**31), 2**31 - 1)
encodings = st.sampled_from(ColumnEncoding)


def tuples(elements, **sizes):
    return st.lists(elements, max_size=sizes.pop("max_size", 4), **sizes).map(tuple)


def id_columns(size):
    return st.lists(ids, min_size=size, max_size=size).map(int32_column)


def number_columns(size):
    return st.lists(singles, min_size=size, max_size=size).map(float32_column)


sampling = st.builds(
    m.SamplingParameters,
    max_new_tokens=positive,
    stop_token_ids=tuples(u32),
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=u32,
    seed=st.none() | u64,
)
groups = st.builds(
    m.PromptGroup,
    group_id=texts,
    ordinal=u64,
    prompt_token_ids=st.integers(0, 40).flatmap(id_columns),
    group_size=positive,
    sampling=sampling,
    purpose=st.sampled_from(m.Purpose),
    payload=st.binary(max_size=20),
    min_weight_version=u64,
)
generate_works = st.builds(
    m.GenerateWork,
    group_id=texts,
    purpose=st.sampled_from(m.Purpose),
    prompt_token_ids=st.integers(0, 40).flatmap(id_columns),
    sample_indices=tuples(u32),
    sampling=sampling,
)


@st.composite
def score_works(draw):
    lengths = draw(tuples(st.integers(1, 9)))
    return m.ScoreWork(
        score_id=draw(texts),
        lengths=lengths,
        token_ids=draw(id_columns(sum(lengths))),
        weight_version=draw(u64),
    )


leases = st.builds(
    m.Lease,
    lease_id=texts,
    attempt=u32,
    time_to_live=seconds,
    min_weight_version=u64,
    work=generate_works | score_works(),
)


@st.composite
def batches(draw):
    lengths = draw(tuples(st.integers(1, 9)))
    tokens, samples = sum(lengths), len(lengths)
    layers, top_k = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    experts = m.RoutedExperts(
        expert_ids=draw(id_columns(tokens * layers * top_k)), layers=layers, top_k=top_k
    )
    return m.TrajectoryBatch(
        group_id=draw(texts),
        sample_indices=draw(tuples(u32, min_size=samples, max_size=samples)),
        lengths=lengths,
        token_ids=draw(id_columns(tokens)),
        log_probs=draw(st.none() | number_columns(tokens)),
        version_spans=draw(tuples(st.builds(m.VersionSpan, u32, u32, u32, u64))),
        finish_reasons=draw(tuples(st.sampled_from(m.FinishReason), min_size=samples, max_size=samples)),
        numerics_id=draw(texts),
        generation_seconds=draw(seconds),
        action_mask=draw(st.none() | st.binary(min_size=tokens, max_size=tokens).map(UInt8Bytes)),
        routed_experts=draw(st.none() | st.just(experts)),
    )


score_batches = st.builds(
    m.ScoreBatch,
    score_id=texts,
    log_probs=st.integers(0, 20).flatmap(number_columns),
    weight_version=u64,
    numerics_id=texts,
)


@st.composite
def finished_groups(draw):
    members = draw(st.lists(batches(), max_size=2).map(tuple))
    size = {"min_size": len(members), "max_size": len(members)}
    return m.FinishedGroup(
        group=draw(groups),
        batches=members,
        version_steps=draw(st.dictionaries(u64, u64, max_size=3)),
        worker_names=draw(tuples(texts, **size)),
        backends=draw(tuples(texts, **size)),
    )


outcomes = tuples(
    st.builds(
        m.SequenceOutcome,
        group_id=texts,
        sample_index=ids,
        reward=singles,
        advantage=singles,
        log_importance_ratio=singles,
        coefficient=singles,
        mean_absolute_gap=singles,
        max_absolute_gap=singles,
        lag=ids,
        disposition=st.sampled_from(m.Disposition),
        staleness_log_ratio=st.none() | singles,
        chip_log_ratio=st.none() | singles,
    )
)
capabilities = st.builds(
    m.Capabilities,
    max_concurrent_sequences=positive,
    max_sequence_tokens=positive,
    scoring=flags,
    in_flight_update=flags,
    processed_log_probs=flags,
    adapters=flags,
    routed_experts=flags,
    weight_encodings=tuples(u32),
)
numerics = st.builds(
    m.NumericsRecord,
    engine=texts,
    engine_version=texts,
    torch_version=texts,
    device_vendor=texts,
    device_name=texts,
    driver_version=texts,
    runtime_version=texts,
    data_type=texts,
    attention_backend=texts,
    log_probs_mode=texts,
    knobs=st.dictionaries(texts, texts, max_size=3),
    emulated=flags,
)
digests = st.builds(m.ModelDigests, texts, texts)
identities = st.builds(m.WorkerIdentity, names, positive)
blobs = st.builds(m.BlobReference, texts, u64)
model_files = st.builds(m.ModelFile, texts, blobs)
join_requests = st.builds(
    m.JoinRequest,
    run_id=texts,
    worker_name=texts,
    boot_id=texts,
    backend=texts,
    software_version=texts,
    capabilities=capabilities,
    numerics=numerics,
    model_digests=digests,
)
join_grants = st.builds(
    m.JoinGrant,
    worker_epoch=positive,
    lease_duration=seconds,
    heartbeat_interval=seconds,
    dead_after=seconds,
    latest_weight_version=u64,
)
lease_grants = st.builds(
    m.LeaseGrant,
    leases=tuples(leases, max_size=2),
    no_work_reason=st.none() | st.sampled_from(m.NoWorkReason),
    min_weight_version=u64,
    latest_weight_version=u64,
)
submissions = st.builds(
    m.Submission,
    worker=identities,
    sequence=u64,
    lease_id=texts,
    final=flags,
    results=batches() | score_batches,
)
heartbeats = st.builds(
    m.Heartbeat,
    worker=identities,
    lease_ids=tuples(texts),
    loaded_weight_version=u64,
    generated_tokens=u64,
    busy_seconds=numbers,
)
heartbeat_replies = st.builds(
    m.HeartbeatReply,
    lost_lease_ids=tuples(texts),
    latest_weight_version=u64,
    state=st.sampled_from(m.WorkerState),
)


@st.composite
def probe_cards(draw):
    lengths = draw(tuples(st.integers(1, 9)))
    return m.ProbeCard(
        lengths=lengths,
        token_ids=draw(id_columns(sum(lengths))),
        log_probs=draw(number_columns(sum(lengths) - len(lengths))),
        tolerance=draw(numbers),
    )


@st.composite
def probe_results(draw):
    tokens = draw(st.integers(0, 20))
    return m.ProbeResult(
        weight_version=draw(u64),
        mean_absolute_difference=draw(numbers),
        max_absolute_difference=draw(numbers),
        mean_difference=draw(numbers),
        tokens=tokens,
        log_probs=draw(st.none() | number_columns(tokens)),
    )


tensors = st.builds(
    m.TensorEntry,
    name=texts,
    data_type=st.sampled_from(m.DataType),
    shape=tuples(u64),
    digest=texts,
    blob_index=st.just(0),
    offset=u64,
    size=u64,
    base_digest=texts,
    tied_names=tuples(texts),
)
manifests = st.builds(
    m.WeightManifest,
    version=positive,
    step=u64,
    encoding=st.sampled_from(m.WeightEncoding),
    tensors=tuples(tensors),
    blobs=tuples(blobs, min_size=1),
    state_digest=texts,
    base_version=u64,
    probe_card=st.none() | probe_cards(),
)
limits = st.builds(
    m.Limits,
    max_message_bytes=positive,
    max_prompt_tokens=positive,
    max_completion_tokens=positive,
    max_group_size=positive,
    vocabulary_size=positive,
)
descriptions = st.builds(
    m.RunDescription,
    run_id=texts,
    model_digests=digests,
    model_files=tuples(model_files),
    sampling=sampling,
    limits=limits,
    latest_weight_version=u64,
)
run_requests = st.builds(
    m.RunRequest,
    run_id=texts,
    groups_per_step=positive,
    max_lag=u32,
    total_steps=u64,
    model_digests=digests,
    model_files=tuples(model_files),
    sampling=sampling,
    limits=limits,
    config_json=texts,
    software_version=texts,
    resume_step=u64,
)
run_grants = st.builds(
    m.RunGrant,
    trainer_epoch=positive,
    latest_weight_version=u64,
    latest_state_digest=texts,
    next_train_ordinal=u64,
    credits=u32,
)
summaries = st.builds(
    m.WorkerSummary,
    worker_name=texts,
    worker_epoch=u64,
    backend=texts,
    state=st.sampled_from(m.WorkerState),
    state_reason=texts,
    capabilities=capabilities,
    numerics=numerics,
    loaded_weight_version=u64,
    leases=u32,
    completions=u64,
    generated_tokens=u64,
    busy_seconds=numbers,
    silence=seconds,
    last_probe=st.none() | probe_results(),
)
counts = st.builds(m.QueueCounts, queued=u64, leased=u64, finished=u64, taken=u64, committed=u64)
statuses = st.builds(
    m.RunStatus,
    run=st.none() | descriptions,
    step=u64,
    total_steps=u64,
    training=counts,
    evaluation=counts,
    counters=st.dictionaries(texts, u64, max_size=3),
    trainer_connected=flags,
    uptime=seconds,
    groups_per_step=u32,
    max_lag=u32,
)
events = st.builds(m.Event, sequence=u64, occurred_at=seconds, kind=texts, worker_name=texts, message=texts)

PLAIN = [
    (sampling, work.sampling_to_proto, work_pb2.SamplingParameters, work.sampling_from_proto),
    (
        outcomes,
        trajectories.outcomes_to_proto,
        training_service_pb2.SequenceOutcomes,
        trajectories.outcomes_from_proto,
    ),
    (
        capabilities,
        workers.capabilities_to_proto,
        worker_pb2.Capabilities,
        workers.capabilities_from_proto,
    ),
    (numerics, workers.numerics_to_proto, worker_pb2.NumericsRecord, workers.numerics_from_proto),
    (digests, workers.model_digests_to_proto, worker_pb2.ModelDigests, workers.model_digests_from_proto),
    (
        identities,
        workers.identity_to_proto,
        rollout_service_pb2.WorkerIdentity,
        workers.identity_from_proto,
    ),
    (
        join_requests,
        workers.join_request_to_proto,
        rollout_service_pb2.JoinRequest,
        workers.join_request_from_proto,
    ),
    (
        join_grants,
        workers.join_grant_to_proto,
        rollout_service_pb2.JoinResponse,
        workers.join_grant_from_proto,
    ),
    (
        st.builds(m.SubmissionReceipt, flags, u32),
        workers.receipt_to_proto,
        rollout_service_pb2.SubmitResultsResponse,
        workers.receipt_from_proto,
    ),
    (
        heartbeats,
        workers.heartbeat_to_proto,
        rollout_service_pb2.HeartbeatRequest,
        workers.heartbeat_from_proto,
    ),
    (
        heartbeat_replies,
        workers.heartbeat_reply_to_proto,
        rollout_service_pb2.HeartbeatResponse,
        workers.heartbeat_reply_from_proto,
    ),
    (blobs, weights.blob_to_proto, weights_pb2.BlobReference, weights.blob_from_proto),
    (model_files, weights.model_file_to_proto, weights_pb2.ModelFile, weights.model_file_from_proto),
    (
        probe_results(),
        weights.probe_result_to_proto,
        weights_pb2.ProbeResult,
        weights.probe_result_from_proto,
    ),
    (manifests, weights.manifest_to_proto, weights_pb2.WeightManifest, weights.manifest_from_proto),
    (limits, run.limits_to_proto, rollout_service_pb2.Limits, run.limits_from_proto),
    (
        descriptions,
        run.run_description_to_proto,
        rollout_service_pb2.RunDescription,
        run.run_description_from_proto,
    ),
    (
        run_requests,
        run.run_request_to_proto,
        training_service_pb2.OpenRunRequest,
        run.run_request_from_proto,
    ),
    (run_grants, run.run_grant_to_proto, training_service_pb2.OpenRunResponse, run.run_grant_from_proto),
    (
        st.builds(m.EnqueueReceipt, u32, u32),
        run.enqueue_receipt_to_proto,
        training_service_pb2.EnqueueGroupsResponse,
        run.enqueue_receipt_from_proto,
    ),
    (
        summaries,
        fleet.worker_summary_to_proto,
        fleet_service_pb2.WorkerSummary,
        fleet.worker_summary_from_proto,
    ),
    (
        statuses,
        fleet.run_status_to_proto,
        fleet_service_pb2.GetRunStatusResponse,
        fleet.run_status_from_proto,
    ),
    (events, fleet.event_to_proto, fleet_service_pb2.Event, fleet.event_from_proto),
]

WITH_COLUMNS = [
    (groups, work.prompt_group_to_proto, work_pb2.PromptGroup, work.prompt_group_from_proto),
    (leases, work.lease_to_proto, work_pb2.Lease, work.lease_from_proto),
    (
        batches(),
        trajectories.trajectory_batch_to_proto,
        trajectory_pb2.TrajectoryBatch,
        trajectories.trajectory_batch_from_proto,
    ),
    (
        score_batches,
        trajectories.score_batch_to_proto,
        trajectory_pb2.ScoreBatch,
        trajectories.score_batch_from_proto,
    ),
    (
        finished_groups(),
        trajectories.finished_group_to_proto,
        training_service_pb2.FinishedGroup,
        trajectories.finished_group_from_proto,
    ),
    (
        lease_grants,
        workers.lease_grant_to_proto,
        rollout_service_pb2.LeaseWorkResponse,
        workers.lease_grant_from_proto,
    ),
    (
        submissions,
        workers.submission_to_proto,
        rollout_service_pb2.SubmitResultsRequest,
        workers.submission_from_proto,
    ),
    (probe_cards(), weights.probe_card_to_proto, weights_pb2.ProbeCard, weights.probe_card_from_proto),
]

quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case[2].DESCRIPTOR.name)
@quick
@given(data=st.data())
def test_a_message_survives_the_wire(case, data):
    strategy, pack, kind, unpack = case
    value = data.draw(strategy)
    assert unpack(kind.FromString(pack(value).SerializeToString())) == value


@pytest.mark.parametrize("case", WITH_COLUMNS, ids=lambda case: case[2].DESCRIPTOR.name)
@quick
@given(data=st.data(), encoding=encodings)
def test_a_message_with_columns_survives_the_wire_in_each_encoding(case, data, encoding):
    strategy, pack, kind, unpack = case
    value = data.draw(strategy)
    assert unpack(kind.FromString(pack(value, encoding).SerializeToString())) == value


def test_every_dataclass_of_the_protocol_has_a_round_trip():
    """A message added to messages.py without a conversion shows here."""
    converted = {
        "SamplingParameters", "PromptGroup", "GenerateWork", "ScoreWork", "Lease", "VersionSpan", "RoutedExperts",
        "TrajectoryBatch", "ScoreBatch", "FinishedGroup", "SequenceOutcome", "Capabilities", "NumericsRecord",
        "ModelDigests", "WorkerIdentity", "BlobReference", "ModelFile", "TensorEntry", "ProbeCard", "ProbeResult",
        "WeightManifest", "Limits", "RunDescription", "RunRequest", "RunGrant", "JoinRequest", "JoinGrant",
        "LeaseGrant", "Submission", "SubmissionReceipt", "Heartbeat", "HeartbeatReply", "EnqueueReceipt",
        "WorkerSummary", "QueueCounts", "RunStatus", "Event",
    }  # fmt: skip
    declared = {
        name
        for name, value in vars(m).items()
        if hasattr(value, "__dataclass_fields__") and value.__module__ == m.__name__
    }
    assert declared == converted


def test_unknown_weight_encodings_of_a_newer_worker_are_left_out():
    assert weights.weight_encodings_from_proto([1, 99, 3]) == (
        m.WeightEncoding.FULL_RAW,
        m.WeightEncoding.ULP_DELTA,
    )


def test_an_unknown_reason_for_no_work_reads_as_none_given():
    message = rollout_service_pb2.LeaseWorkResponse.FromString(b"\x10\x63")
    assert int(message.no_work_reason) == 99
    assert workers.lease_grant_from_proto(message).no_work_reason is None
