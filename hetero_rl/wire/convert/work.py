"""Prompt groups, leases and what is sampled: proto <-> frozen values."""

from google.protobuf.message import Message

from hetero_rl.v1 import work_pb2
from hetero_rl.wire.column_codec import ColumnEncoding, encode_column
from hetero_rl.wire.columns import Int32Bytes, int32_column, int32_view
from hetero_rl.wire.convert import fields
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    DataType,
    GenerateWork,
    Lease,
    PromptGroup,
    Purpose,
    SamplingParameters,
    ScoreWork,
)

__all__ = [
    "lease_from_proto",
    "lease_to_proto",
    "prompt_group_from_proto",
    "prompt_group_to_proto",
    "sampling_from_proto",
    "sampling_to_proto",
]


def sampling_to_proto(sampling: SamplingParameters) -> work_pb2.SamplingParameters:
    """Packs sampling parameters."""
    return work_pb2.SamplingParameters(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        stop_token_ids=sampling.stop_token_ids,
        seed=sampling.seed,
    )


def sampling_from_proto(message: work_pb2.SamplingParameters) -> SamplingParameters:
    """Unpacks sampling parameters; refuses values outside the ranges of the protocol."""
    temperature = fields.finite_of(message, "temperature")
    if not 0 <= temperature <= 2:
        raise invalid("SamplingParameters.temperature", f"is {temperature}, expected a number in [0, 2]")
    top_p = fields.finite_of(message, "top_p")
    if not 0 < top_p <= 1:
        raise invalid("SamplingParameters.top_p", f"is {top_p}, expected a number in (0, 1]")
    return SamplingParameters(
        temperature=temperature,
        top_p=top_p,
        top_k=message.top_k,
        max_new_tokens=fields.count_of(message, "max_new_tokens", 1),
        stop_token_ids=tuple(message.stop_token_ids),
        seed=message.seed if message.HasField("seed") else None,
    )


def prompt_group_to_proto(
    group: PromptGroup, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> work_pb2.PromptGroup:
    """Packs a prompt group."""
    return work_pb2.PromptGroup(
        group_id=group.group_id,
        ordinal=group.ordinal,
        purpose=f"PURPOSE_{group.purpose.name}",
        prompt_token_ids=encode_column(group.prompt_token_ids, DataType.INT32, encoding),
        group_size=group.group_size,
        sampling=sampling_to_proto(group.sampling),
        payload=group.payload,
        min_weight_version=group.min_weight_version,
    )


def prompt_group_from_proto(
    message: work_pb2.PromptGroup, *, max_prompt_tokens: int | None = None
) -> PromptGroup:
    """Unpacks a prompt group."""
    fields.require(message, "sampling")
    prompt = fields.column_of(message, "prompt_token_ids", DataType.INT32, max_elements=max_prompt_tokens)
    return PromptGroup(
        group_id=message.group_id,
        ordinal=message.ordinal,
        purpose=fields.member_of(Purpose, message, "purpose"),
        prompt_token_ids=Int32Bytes(prompt),
        group_size=fields.count_of(message, "group_size", 1),
        sampling=sampling_from_proto(message.sampling),
        payload=message.payload,
        min_weight_version=message.min_weight_version,
    )


def generate_to_proto(work: GenerateWork, encoding: ColumnEncoding) -> work_pb2.GenerateWork:
    """Packs completions to generate."""
    return work_pb2.GenerateWork(
        group_id=work.group_id,
        purpose=f"PURPOSE_{work.purpose.name}",
        prompt_token_ids=encode_column(work.prompt_token_ids, DataType.INT32, encoding),
        sample_indices=work.sample_indices,
        sampling=sampling_to_proto(work.sampling),
    )


def generate_from_proto(message: work_pb2.GenerateWork) -> GenerateWork:
    """Unpacks completions to generate."""
    fields.require(message, "sampling")
    return GenerateWork(
        group_id=message.group_id,
        purpose=fields.member_of(Purpose, message, "purpose"),
        prompt_token_ids=Int32Bytes(fields.column_of(message, "prompt_token_ids", DataType.INT32)),
        sample_indices=tuple(message.sample_indices),
        sampling=sampling_from_proto(message.sampling),
    )


def score_to_proto(work: ScoreWork, encoding: ColumnEncoding) -> work_pb2.ScoreWork:
    """Packs tokens to score."""
    return work_pb2.ScoreWork(
        score_id=work.score_id,
        lengths=encode_column(int32_column(work.lengths), DataType.INT32, encoding),
        token_ids=encode_column(work.token_ids, DataType.INT32, encoding),
        weight_version=work.weight_version,
    )


def score_from_proto(message: work_pb2.ScoreWork) -> ScoreWork:
    """Unpacks tokens to score."""
    lengths = lengths_of(message, "lengths")
    tokens = fields.column_of(message, "token_ids", DataType.INT32, length=sum(lengths))
    return ScoreWork(
        score_id=message.score_id,
        lengths=lengths,
        token_ids=Int32Bytes(tokens),
        weight_version=message.weight_version,
    )


def lengths_of(message: Message, field: str, *, length: int | None = None) -> tuple[int, ...]:
    """Reads a column of sequence lengths; each is at least 1."""
    lengths = tuple(int32_view(fields.column_of(message, field, DataType.INT32, length=length)))
    if lengths and min(lengths) < 1:
        raise invalid(fields.name_of(message, field), f"holds {min(lengths)}, expected lengths of at least 1")
    return lengths


def lease_to_proto(lease: Lease, encoding: ColumnEncoding = ColumnEncoding.RAW) -> work_pb2.Lease:
    """Packs a lease."""
    message = work_pb2.Lease(
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        time_to_live=fields.duration_to_proto(lease.time_to_live),
        min_weight_version=lease.min_weight_version,
    )
    if isinstance(lease.work, GenerateWork):
        message.generate.CopyFrom(generate_to_proto(lease.work, encoding))
    else:
        message.score.CopyFrom(score_to_proto(lease.work, encoding))
    return message


def lease_from_proto(message: work_pb2.Lease) -> Lease:
    """Unpacks a lease; refuses one whose kind of work this side does not know."""
    work: GenerateWork | ScoreWork
    match message.WhichOneof("work"):
        case "generate":
            work = generate_from_proto(message.generate)
        case "score":
            work = score_from_proto(message.score)
        case _:
            raise invalid("Lease.work", "is missing or of a kind that this side does not know")
    return Lease(
        lease_id=message.lease_id,
        attempt=message.attempt,
        time_to_live=fields.seconds_of(message, "time_to_live"),
        min_weight_version=message.min_weight_version,
        work=work,
    )
