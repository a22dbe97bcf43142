"""Whatever arrives, conversion answers with a value or with InvalidMessageError, and nothing else."""

import contextlib

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero_rl.errors import InvalidMessageError
from hetero_rl.v1 import (
    columns_pb2,
    errors_pb2,
    fleet_service_pb2,
    rollout_service_pb2,
    training_service_pb2,
    trajectory_pb2,
    weights_pb2,
    work_pb2,
)
from hetero_rl.wire.convert import fleet, run, trajectories, weights, work, workers

UNPACKERS = {
    work_pb2.PromptGroup: work.prompt_group_from_proto,
    work_pb2.Lease: work.lease_from_proto,
    trajectory_pb2.TrajectoryBatch: trajectories.trajectory_batch_from_proto,
    training_service_pb2.FinishedGroup: trajectories.finished_group_from_proto,
    training_service_pb2.SequenceOutcomes: trajectories.outcomes_from_proto,
    training_service_pb2.OpenRunRequest: run.run_request_from_proto,
    training_service_pb2.OpenRunResponse: run.run_grant_from_proto,
    rollout_service_pb2.RunDescription: run.run_description_from_proto,
    rollout_service_pb2.JoinRequest: workers.join_request_from_proto,
    rollout_service_pb2.JoinResponse: workers.join_grant_from_proto,
    rollout_service_pb2.SubmitResultsRequest: workers.submission_from_proto,
    rollout_service_pb2.LeaseWorkResponse: workers.lease_grant_from_proto,
    rollout_service_pb2.HeartbeatRequest: workers.heartbeat_from_proto,
    rollout_service_pb2.HeartbeatResponse: workers.heartbeat_reply_from_proto,
    weights_pb2.WeightManifest: weights.manifest_from_proto,
    weights_pb2.ProbeResult: weights.probe_result_from_proto,
    fleet_service_pb2.WorkerSummary: fleet.worker_summary_from_proto,
    fleet_service_pb2.GetRunStatusResponse: fleet.run_status_from_proto,
    fleet_service_pb2.Event: fleet.event_from_proto,
}

SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1) | st.integers(0, 3),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1) | st.integers(0, 3),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(-1, 9),
}


def scalars(field):
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.binary(max_size=24) if field.type == FieldDescriptor.TYPE_BYTES else st.text(max_size=6)
    return SCALARS[field.cpp_type]


def fill(draw, message):
    """Sets a random part of a message's fields to random values, guided by its descriptor alone."""
    for field in message.DESCRIPTOR.fields:
        if draw(st.integers(0, 4)) == 0:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            entries = st.dictionaries(scalars(key), scalars(value), max_size=2)
            getattr(message, field.name).update(draw(entries))
        elif field.message_type is not None and field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                fill(draw, getattr(message, field.name).add())
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(draw, getattr(message, field.name))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(scalars(field), max_size=3)))
        else:
            setattr(message, field.name, draw(scalars(field)))
    return message


fuzzing = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("kind", UNPACKERS, ids=lambda kind: kind.DESCRIPTOR.name)
@fuzzing
@given(data=st.data())
def test_a_random_message_is_read_or_refused(kind, data):
    message = fill(data.draw, kind())
    with contextlib.suppress(InvalidMessageError):
        UNPACKERS[kind](message)


@pytest.mark.parametrize("kind", UNPACKERS, ids=lambda kind: kind.DESCRIPTOR.name)
@fuzzing
@given(data=st.data(), junk=st.binary(max_size=8))
def test_mutated_bytes_are_read_or_refused(kind, data, junk):
    packed = bytearray(fill(data.draw, kind()).SerializeToString())
    position = data.draw(st.integers(0, len(packed)))
    packed[position : position + data.draw(st.integers(0, 4))] = junk
    with contextlib.suppress(DecodeError, InvalidMessageError):
        UNPACKERS[kind](kind.FromString(bytes(packed)))


def batch(**changes):
    column = columns_pb2.Column
    fields = {
        "group_id": "g",
        "sample_indices": [0, 1],
        "lengths": column(data_type=3, encoding=1, length=2, data=bytes.fromhex("02000000 01000000")),
        "token_ids": column(data_type=3, encoding=1, length=3, data=bytes(12)),
        "log_probs": column(data_type=7, encoding=1, length=3, data=bytes(12)),
        "finish_reasons": [1, 2],
    }
    return trajectory_pb2.TrajectoryBatch(**(fields | changes))


def test_the_batch_that_the_refusals_below_start_from_is_read():
    assert trajectories.trajectory_batch_from_proto(batch()).lengths == (2, 1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lengths": None}, "TrajectoryBatch.lengths"),
        ({"token_ids": None}, "TrajectoryBatch.token_ids"),
        ({"sample_indices": [0]}, "TrajectoryBatch.lengths"),
        ({"finish_reasons": [1]}, "TrajectoryBatch.finish_reasons"),
        ({"finish_reasons": [1, 0]}, "TrajectoryBatch.finish_reasons[1]"),
        (
            {"lengths": columns_pb2.Column(data_type=3, encoding=1, length=2, data=bytes(8))},
            "TrajectoryBatch.lengths",
        ),
        (
            {"log_probs": columns_pb2.Column(data_type=7, encoding=1, length=2, data=bytes(8))},
            "TrajectoryBatch.log_probs",
        ),
        (
            {"log_probs": columns_pb2.Column(data_type=3, encoding=1, length=3, data=bytes(12))},
            "TrajectoryBatch.log_probs.data_type",
        ),
        (
            {"action_mask": columns_pb2.Column(data_type=1, encoding=1, length=4, data=bytes(4))},
            "TrajectoryBatch.action_mask",
        ),
        ({"routed_experts": trajectory_pb2.RoutedExperts(layers=1)}, "RoutedExperts.top_k"),
    ],
)
def test_a_batch_whose_parts_disagree_is_refused_with_the_field(changes, field):
    with pytest.raises(InvalidMessageError) as caught:
        trajectories.trajectory_batch_from_proto(batch(**changes))
    assert caught.value.field == field
    assert field in str(caught.value)


def test_a_batch_of_more_tokens_than_the_receiver_takes_is_refused_before_it_is_decoded():
    assert trajectories.trajectory_batch_from_proto(batch(), max_tokens=3).group_id == "g"
    with pytest.raises(InvalidMessageError, match="add up to 3 tokens, at most 2"):
        trajectories.trajectory_batch_from_proto(batch(), max_tokens=2)


def test_a_forged_numerics_id_is_refused():
    record = rollout_service_pb2.JoinRequest().numerics
    record.engine = "vllm"
    record.numerics_id = "0" * 16
    with pytest.raises(InvalidMessageError, match="numerics_id"):
        workers.numerics_from_proto(record)


def test_a_message_nested_a_thousand_deep_is_refused_by_the_parser():
    packed = b""
    for _ in range(1000):
        size, varint = len(packed), bytearray()
        while size > 0x7F:
            varint.append(size & 0x7F | 0x80)
            size >>= 7
        packed = b"\x0b" + packed + b"\x0c"  # an unknown group, field 1, around what was there
    with pytest.raises(DecodeError):
        errors_pb2.Refusal.FromString(packed)
