"""Every message crosses the wire unchanged, in both column encodings."""

import collections.abc
import dataclasses
import enum
import types
import typing

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
from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, UInt8Bytes, float32_column, int32_column
from hetero_rl.wire.convert import fleet, run, trajectories, weights, work, workers

numbers = st.floats(allow_nan=False, allow_infinity=False)
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)
seconds = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
ids = st.integers(-(2**31), 2**31 - 1)

DURATIONS = {
    "time_to_live", "generation_seconds", "lease_duration", "heartbeat_interval", "dead_after", "silence", "uptime",
    "occurred_at", "fetch_seconds", "decode_seconds", "verify_seconds", "pause_seconds", "total_seconds",
}  # fmt: skip


def id_columns(size):
    return st.lists(ids, min_size=size, max_size=size).map(int32_column)


def number_columns(size):
    return st.lists(singles, min_size=size, max_size=size).map(float32_column)


SCALARS = {
    bool: st.booleans(),
    int: st.integers(1, 2**31 - 1),
    str: st.text(min_size=1, max_size=8),
    bytes: st.binary(max_size=20),
    float: numbers,
    Int32Bytes: st.integers(0, 20).flatmap(id_columns),
    Float32Bytes: st.integers(0, 20).flatmap(number_columns),
}


def values(hint):
    """A strategy for anything that messages.py declares, out of its annotations."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in SPECIAL or hint in SCALARS:
        return SPECIAL[hint]() if hint in SPECIAL else SCALARS[hint]
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is collections.abc.Mapping:
        return st.dictionaries(*map(values, arguments), max_size=3)
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([st.none() if kind is type(None) else values(kind) for kind in arguments])
    return st.sampled_from(hint) if issubclass(hint, enum.Enum) else built(hint)


def built(kind, **known):
    """A strategy for a dataclass; `known` replaces what its annotations would give."""
    for name, hint in typing.get_type_hints(kind).items():
        if name in known:
            continue
        if name in DURATIONS:
            known[name] = seconds
        elif kind is m.SequenceOutcome and hint in {float, float | None}:
            known[name] = singles if hint is float else st.none() | singles
        else:
            known[name] = values(hint)
    return st.builds(kind, **known)


@st.composite
def score_works(draw):
    lengths = draw(st.lists(st.integers(1, 9), max_size=4).map(tuple))
    return draw(built(m.ScoreWork, lengths=st.just(lengths), token_ids=id_columns(sum(lengths))))


@st.composite
def trajectory_batches(draw):
    lengths = draw(st.lists(st.integers(1, 9), max_size=4).map(tuple))
    tokens, samples = sum(lengths), len(lengths)
    layers, top_k = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    experts = m.RoutedExperts(
        expert_ids=draw(id_columns(tokens * layers * top_k)), layers=layers, top_k=top_k
    )

    def one_each(elements):
        return st.lists(elements, min_size=samples, max_size=samples).map(tuple)

    batch = built(
        m.TrajectoryBatch,
        lengths=st.just(lengths),
        sample_indices=one_each(SCALARS[int]),
        finish_reasons=one_each(st.sampled_from(m.FinishReason)),
        token_ids=id_columns(tokens),
        log_probs=st.none() | number_columns(tokens),
        action_mask=st.none() | st.binary(min_size=tokens, max_size=tokens).map(UInt8Bytes),
        routed_experts=st.none() | st.just(experts),
    )
    return draw(batch)


@st.composite
def finished_groups(draw):
    batches = draw(st.lists(trajectory_batches(), max_size=2).map(tuple))
    names = st.lists(SCALARS[str], min_size=len(batches), max_size=len(batches)).map(tuple)
    return draw(built(m.FinishedGroup, batches=st.just(batches), worker_names=names, backends=names))


@st.composite
def probe_cards(draw):
    lengths = draw(st.lists(st.integers(1, 9), max_size=4).map(tuple))
    tokens = sum(lengths)
    columns = {"token_ids": id_columns(tokens), "log_probs": number_columns(tokens - len(lengths))}
    return draw(built(m.ProbeCard, lengths=st.just(lengths), **columns))


@st.composite
def probe_results(draw):
    tokens = draw(st.integers(0, 20))
    return draw(built(m.ProbeResult, tokens=st.just(tokens), log_probs=st.none() | number_columns(tokens)))


def sampling():
    return built(m.SamplingParameters, temperature=st.floats(0, 2), top_p=st.floats(0, 1, exclude_min=True))


def manifests():
    blobs = st.lists(built(m.BlobReference), min_size=1, max_size=3).map(tuple)
    tensors = st.lists(built(m.TensorEntry, blob_index=st.just(0)), max_size=3).map(tuple)
    return built(m.WeightManifest, blobs=blobs, tensors=tensors)


SPECIAL = {
    m.ScoreWork: score_works,
    m.TrajectoryBatch: trajectory_batches,
    m.FinishedGroup: finished_groups,
    m.ProbeCard: probe_cards,
    m.ProbeResult: probe_results,
    m.SamplingParameters: sampling,
    m.WeightManifest: manifests,
}

PLAIN = {
    m.SamplingParameters: (work.sampling_to_proto, work_pb2.SamplingParameters, work.sampling_from_proto),
    tuple[m.SequenceOutcome, ...]: (
        trajectories.outcomes_to_proto,
        training_service_pb2.SequenceOutcomes,
        trajectories.outcomes_from_proto,
    ),
    m.Capabilities: (
        workers.capabilities_to_proto,
        worker_pb2.Capabilities,
        workers.capabilities_from_proto,
    ),
    m.NumericsRecord: (workers.numerics_to_proto, worker_pb2.NumericsRecord, workers.numerics_from_proto),
    m.ModelDigests: (
        workers.model_digests_to_proto,
        worker_pb2.ModelDigests,
        workers.model_digests_from_proto,
    ),
    m.WorkerIdentity: (
        workers.identity_to_proto,
        rollout_service_pb2.WorkerIdentity,
        workers.identity_from_proto,
    ),
    m.JoinRequest: (
        workers.join_request_to_proto,
        rollout_service_pb2.JoinRequest,
        workers.join_request_from_proto,
    ),
    m.JoinGrant: (
        workers.join_grant_to_proto,
        rollout_service_pb2.JoinResponse,
        workers.join_grant_from_proto,
    ),
    m.SubmissionReceipt: (
        workers.receipt_to_proto,
        rollout_service_pb2.SubmitResultsResponse,
        workers.receipt_from_proto,
    ),
    m.Heartbeat: (
        workers.heartbeat_to_proto,
        rollout_service_pb2.HeartbeatRequest,
        workers.heartbeat_from_proto,
    ),
    m.HeartbeatReply: (
        workers.heartbeat_reply_to_proto,
        rollout_service_pb2.HeartbeatResponse,
        workers.heartbeat_reply_from_proto,
    ),
    m.BlobReference: (weights.blob_to_proto, weights_pb2.BlobReference, weights.blob_from_proto),
    m.ModelFile: (weights.model_file_to_proto, weights_pb2.ModelFile, weights.model_file_from_proto),
    m.ProbeResult: (
        weights.probe_result_to_proto,
        weights_pb2.ProbeResult,
        weights.probe_result_from_proto,
    ),
    m.WeightManifest: (
        weights.manifest_to_proto,
        weights_pb2.WeightManifest,
        weights.manifest_from_proto,
    ),
    m.Limits: (run.limits_to_proto, rollout_service_pb2.Limits, run.limits_from_proto),
    m.RunDescription: (
        run.run_description_to_proto,
        rollout_service_pb2.RunDescription,
        run.run_description_from_proto,
    ),
    m.RunRequest: (
        run.run_request_to_proto,
        training_service_pb2.OpenRunRequest,
        run.run_request_from_proto,
    ),
    m.RunGrant: (
        run.run_grant_to_proto,
        training_service_pb2.OpenRunResponse,
        run.run_grant_from_proto,
    ),
    m.EnqueueReceipt: (
        run.enqueue_receipt_to_proto,
        training_service_pb2.EnqueueGroupsResponse,
        run.enqueue_receipt_from_proto,
    ),
    m.WorkerSummary: (
        fleet.worker_summary_to_proto,
        fleet_service_pb2.WorkerSummary,
        fleet.worker_summary_from_proto,
    ),
    m.RunStatus: (
        fleet.run_status_to_proto,
        fleet_service_pb2.GetRunStatusResponse,
        fleet.run_status_from_proto,
    ),
    m.ScoreStatus: (
        fleet.score_status_to_proto,
        fleet_service_pb2.GetScoreResponse,
        fleet.score_status_from_proto,
    ),
    m.Event: (fleet.event_to_proto, fleet_service_pb2.Event, fleet.event_from_proto),
}

WITH_COLUMNS = {
    m.PromptGroup: (work.prompt_group_to_proto, work_pb2.PromptGroup, work.prompt_group_from_proto),
    m.Lease: (work.lease_to_proto, work_pb2.Lease, work.lease_from_proto),
    m.TrajectoryBatch: (
        trajectories.trajectory_batch_to_proto,
        trajectory_pb2.TrajectoryBatch,
        trajectories.trajectory_batch_from_proto,
    ),
    m.ScoreBatch: (
        trajectories.score_batch_to_proto,
        trajectory_pb2.ScoreBatch,
        trajectories.score_batch_from_proto,
    ),
    m.FinishedGroup: (
        trajectories.finished_group_to_proto,
        training_service_pb2.FinishedGroup,
        trajectories.finished_group_from_proto,
    ),
    m.LeaseGrant: (
        workers.lease_grant_to_proto,
        rollout_service_pb2.LeaseWorkResponse,
        workers.lease_grant_from_proto,
    ),
    m.Submission: (
        workers.submission_to_proto,
        rollout_service_pb2.SubmitResultsRequest,
        workers.submission_from_proto,
    ),
    m.ProbeCard: (weights.probe_card_to_proto, weights_pb2.ProbeCard, weights.probe_card_from_proto),
}

quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def name_of(kind):
    return getattr(kind, "__name__", "outcomes")


@pytest.mark.parametrize("kind", PLAIN, ids=name_of)
@quick
@given(data=st.data())
def test_a_message_survives_the_wire(kind, data):
    pack, proto, unpack = PLAIN[kind]
    value = data.draw(values(kind))
    assert unpack(proto.FromString(pack(value).SerializeToString())) == value


@pytest.mark.parametrize("kind", WITH_COLUMNS, ids=name_of)
@quick
@given(data=st.data(), encoding=st.sampled_from(ColumnEncoding))
def test_a_message_with_columns_survives_the_wire_in_each_encoding(kind, data, encoding):
    pack, proto, unpack = WITH_COLUMNS[kind]
    value = data.draw(values(kind))
    assert unpack(proto.FromString(pack(value, encoding).SerializeToString())) == value


def test_every_dataclass_of_the_protocol_is_reached_by_a_round_trip():
    """A message added to hetero_rl.wire.messages without a conversion shows here."""
    declared = {
        kind
        for kind in vars(m).values()
        if dataclasses.is_dataclass(kind) and kind.__module__.startswith(m.__name__)
    }
    reached: set[type] = set()
    pending = [m.SequenceOutcome, *PLAIN, *WITH_COLUMNS]
    while pending:
        hint = pending.pop()
        pending.extend(typing.get_args(hint))
        if hint in declared and hint not in reached:
            reached.add(hint)
            pending.extend(typing.get_type_hints(hint).values())
    assert reached == declared


@pytest.mark.parametrize("value", [0, 2**32 - 1])
def test_the_smallest_and_largest_counts_survive(value):
    receipt = m.EnqueueReceipt(accepted=value, credits=value)
    assert run.enqueue_receipt_from_proto(run.enqueue_receipt_to_proto(receipt)) == receipt


@pytest.mark.parametrize("value", [0, 2**64 - 1])
def test_the_smallest_and_largest_versions_survive(value):
    version = m.QueueCounts(queued=value, committed=value)
    assert fleet.queue_counts_from_proto(fleet.queue_counts_to_proto(version)) == version


def test_a_seed_of_zero_is_not_the_same_as_no_seed():
    parameters = m.SamplingParameters(max_new_tokens=1, stop_token_ids=(), seed=0)
    assert work.sampling_from_proto(work.sampling_to_proto(parameters)).seed == 0


def test_unknown_weight_encodings_of_a_newer_worker_are_left_out():
    assert weights.weight_encodings_from_proto([1, 99, 3]) == (
        m.WeightEncoding.FULL_RAW,
        m.WeightEncoding.ULP_DELTA,
    )


def test_an_unknown_reason_for_no_work_reads_as_none_given():
    message = rollout_service_pb2.LeaseWorkResponse.FromString(b"\x10\x63")
    assert int(message.no_work_reason) == 99
    assert workers.lease_grant_from_proto(message).no_work_reason is None
