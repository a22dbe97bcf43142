"""What decodes bytes of others, as functions of bytes; and real messages to begin with.

The first byte of an input chooses the target, the rest is its input. A target may refuse what it gets with an error of this package, or,
where protobuf itself decodes, with `DecodeError`; anything else is a fault. What a target accepts must come out the same once more.
"""

import random

import numpy as np
from google.protobuf.message import DecodeError

from hetero_rl.errors import HeteroRLError
from hetero_rl.v1 import columns_pb2, rollout_service_pb2, training_service_pb2, weights_pb2
from hetero_rl.weights.delta import DeltaCoder, bits_of, compare_bits
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.planes import decode_planes, encode_planes
from hetero_rl.wire.chunks import decode_chunk, decode_following, encode_chunk, encode_following
from hetero_rl.wire.column_codec import ColumnEncoding, decode_column, encode_column
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.convert import weights, work, workers
from hetero_rl.wire.messages import (
    DataType,
    FinishReason,
    PromptGroup,
    SamplingParameters,
    Submission,
    TrajectoryBatch,
    VersionSpan,
    WorkerIdentity,
)
from hetero_rl.wire.validation import check_manifest
from tests.chaos.messages import random_message
from tests.chaos.trainer_process import manifest_of

__all__ = ["MESSAGES", "TARGETS", "remade", "run", "seeds"]

_MOST_ELEMENTS = 4096
_VALUES = 96  # elements of the tensors that deltas and planes are applied to
_TYPES = (DataType.BFLOAT16, DataType.FLOAT16, DataType.FLOAT32)


def submission(data):
    """A worker's results, with every column."""
    message = rollout_service_pb2.SubmitResultsRequest.FromString(data)
    found = workers.submission_from_proto(message, max_tokens=_MOST_ELEMENTS)
    again = workers.submission_to_proto(found, ColumnEncoding.RAW)
    assert workers.submission_from_proto(again, max_tokens=_MOST_ELEMENTS) == found


def manifest(data):
    """A weight version's manifest, as hub and workers read it."""
    found = weights.manifest_from_proto(weights_pb2.WeightManifest.FromString(data))
    check_manifest(found, 100)
    assert weights.manifest_from_proto(weights.manifest_to_proto(found)) == found


def prompt_group(data):
    """Prompt groups of a trainer."""
    for group in training_service_pb2.EnqueueGroupsRequest.FromString(data).groups:
        found = work.prompt_group_from_proto(group)
        assert work.prompt_group_from_proto(work.prompt_group_to_proto(found)) == found


def join(data):
    """A worker that joins."""
    workers.join_request_from_proto(rollout_service_pb2.JoinRequest.FromString(data))


def column(data):
    """One column in any layout and of any type; the first byte says which type is expected."""
    kinds = list(DataType)
    kind = kinds[data[0] % len(kinds)] if data else kinds[0]
    message = columns_pb2.Column.FromString(data[1:])
    found = decode_column(message, kind, "column", max_elements=_MOST_ELEMENTS)
    assert len(found) <= _MOST_ELEMENTS * kind.item_size


def chunk(data):
    """A piece of a blob from a hub or a relay."""
    offset, piece = decode_chunk(data)
    assert decode_chunk(encode_chunk(offset, bytes(piece))) == (offset, bytes(piece))


def following(data):
    """A piece of the news that a relay or a worker follows."""
    decode_following(data)


def delta(data):
    """A coded tensor, applied to known bits; the first byte says of which type."""
    kind = _TYPES[data[0] % len(_TYPES)] if data else _TYPES[0]
    old = _bits(kind)
    bits = old.copy()
    guard = np.concatenate([bits, np.full(64, 7, bits.dtype)])  # what lies behind the tensor
    DeltaCoder().decode(kind, guard[: bits.size], memoryview(data[1:]))
    assert (guard[bits.size :] == 7).all()


def planes(data):
    """A tensor in byte planes."""
    kind = _TYPES[data[0] % len(_TYPES)] if data else _TYPES[0]
    size = _VALUES * kind.item_size
    assert len(decode_planes(kind, memoryview(data[1:]), size)) == size


MESSAGES = {
    submission: rollout_service_pb2.SubmitResultsRequest,
    manifest: weights_pb2.WeightManifest,
    prompt_group: training_service_pb2.EnqueueGroupsRequest,
    join: rollout_service_pb2.JoinRequest,
}
"""Targets whose input is a message, and which."""

TARGETS = (submission, manifest, prompt_group, join, column, chunk, following, delta, planes)


def run(data):
    """One input; returns whether it was accepted."""
    if not data:
        return False
    try:
        TARGETS[data[0] % len(TARGETS)](data[1:])
    except (HeteroRLError, DecodeError):
        return False
    return True


def remade(draw, data):
    """An input whose message has some fields set at random, by its descriptor; None for one that is no message."""
    kind = MESSAGES.get(TARGETS[data[0] % len(TARGETS)]) if data else None
    if kind is None:
        return None
    try:
        message = kind.FromString(data[1:])
    except DecodeError:
        message = kind()
    other = random_message(draw, kind.DESCRIPTOR, ("w", "g0", "n"))
    for field, _ in other.ListFields():
        if draw.random() < 0.7:
            other.ClearField(field.name)
        elif draw.random() < 0.5:
            message.ClearField(field.name)
    message.MergeFrom(other)
    return data[:1] + message.SerializeToString()


def _bits(kind, seed=1):
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    return bits_of(kind, memoryview(bytearray(draw.randbytes(_VALUES * kind.item_size)))).copy()


def seeds():
    """Real messages by target, as inputs of `run`."""
    inputs = []
    for number, target in enumerate(TARGETS):
        inputs += [bytes([number]) + message for message in _MESSAGES[target]()]
    return inputs


def _submissions():
    batch = TrajectoryBatch(
        group_id="g0",
        sample_indices=(0, 1),
        lengths=(3, 2),
        token_ids=int32_column([1, 2, 3, 4, 5]),
        log_probs=float32_column([-1.0, -0.5, -2.0, -0.25, -3.0]),
        version_spans=(VersionSpan(0, 0, 3, 1), VersionSpan(1, 0, 2, 1)),
        finish_reasons=(FinishReason.LENGTH, FinishReason.STOP),
        numerics_id="n",
        generation_seconds=0.5,
    )
    sent = Submission(worker=WorkerIdentity("w", 1), sequence=1, lease_id="l", final=True, results=batch)
    return [workers.submission_to_proto(sent, how).SerializeToString() for how in ColumnEncoding]


def _manifests():
    return [
        weights.manifest_to_proto(manifest_of(bytes(12), version=2, step=1)).SerializeToString(),
        weights_pb2.WeightManifest(version=1, step=0).SerializeToString(),
    ]


def _prompt_groups():
    group = PromptGroup(
        group_id="g0",
        ordinal=0,
        prompt_token_ids=int32_column([3, 4]),
        group_size=2,
        sampling=SamplingParameters(max_new_tokens=4, stop_token_ids=(2,)),
    )
    request = training_service_pb2.EnqueueGroupsRequest(
        trainer_epoch=1, groups=[work.prompt_group_to_proto(group)]
    )
    return [request.SerializeToString()]


def _joins():
    return [rollout_service_pb2.JoinRequest(run_id="r", worker_name="w", boot_id="b").SerializeToString()]


def _columns():
    values = bytes(range(64)) * 2
    return [
        bytes([list(DataType).index(kind)]) + encode_column(values, kind, how).SerializeToString()
        for kind in (DataType.FLOAT32, DataType.INT32)
        for how in ColumnEncoding
    ]


def _chunks():
    return [encode_chunk(0, b"abc"), encode_chunk(70_000, digest_of_bytes(b"").encode())]


def _followings():
    return [encode_following(piece) for piece in _chunks()]


def _deltas():
    return [
        bytes([number]) + DeltaCoder().encode(kind, _bits(kind), compare_bits(_bits(kind), _bits(kind, 2)))
        for number, kind in enumerate(_TYPES)
    ]


def _planes():
    return [
        bytes([number]) + encode_planes(kind, memoryview(_bits(kind)).cast("B"))
        for number, kind in enumerate(_TYPES)
    ]


_MESSAGES = dict(
    zip(
        TARGETS,
        (_submissions, _manifests, _prompt_groups, _joins, _columns, _chunks, _followings, _deltas, _planes),
        strict=True,
    )
)
