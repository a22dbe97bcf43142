"""Completions, scores, finished groups and outcomes: proto <-> frozen values.

N tokens and S samples. Sizes are checked against each other before a column is decoded.
"""

import itertools
import math
import operator
from collections.abc import Iterable, Sequence

from hetero_rl.v1 import columns_pb2, training_service_pb2, trajectory_pb2
from hetero_rl.wire.column_codec import ColumnEncoding, encode_column, fill_column
from hetero_rl.wire.columns import (
    Float32Bytes,
    Int32Bytes,
    UInt8Bytes,
    float32_column,
    float32_view,
    int32_column,
    int32_view,
)
from hetero_rl.wire.convert import fields
from hetero_rl.wire.convert.work import lengths_of, prompt_group_from_proto, prompt_group_to_proto
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    DataType,
    Disposition,
    FinishedGroup,
    FinishReason,
    RoutedExperts,
    ScoreBatch,
    SequenceOutcome,
    TrajectoryBatch,
    VersionSpan,
)

__all__ = [
    "fill_trajectory_batch",
    "finished_group_from_proto",
    "finished_group_to_proto",
    "outcomes_from_proto",
    "outcomes_to_proto",
    "score_batch_from_proto",
    "score_batch_to_proto",
    "trajectory_batch_from_proto",
    "trajectory_batch_to_proto",
]

_SPAN_FIELDS = operator.attrgetter(*VersionSpan._fields)


def trajectory_batch_to_proto(
    batch: TrajectoryBatch, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> trajectory_pb2.TrajectoryBatch:
    """Packs completions; `encoding` is that of the token columns."""
    message = trajectory_pb2.TrajectoryBatch()
    fill_trajectory_batch(message, batch, encoding)
    return message


def fill_trajectory_batch(
    message: trajectory_pb2.TrajectoryBatch, batch: TrajectoryBatch, encoding: ColumnEncoding
) -> None:
    """Packs completions into their place in a larger message, which saves a copy of every column."""
    message.group_id = batch.group_id
    message.sample_indices.extend(batch.sample_indices)
    fill_column(message.lengths, int32_column(batch.lengths), DataType.INT32, ColumnEncoding.RAW)
    fill_column(message.token_ids, batch.token_ids, DataType.INT32, encoding)
    if batch.log_probs is not None:
        fill_column(message.log_probs, batch.log_probs, DataType.FLOAT32, encoding)
    if batch.action_mask is not None:
        fill_column(message.action_mask, batch.action_mask, DataType.UINT8, encoding)
    for span in batch.version_spans:
        message.version_spans.add(
            sample=span.sample, start=span.start, end=span.end, weight_version=span.weight_version
        )
    message.finish_reasons.extend(
        getattr(trajectory_pb2, f"FINISH_REASON_{reason.name}") for reason in batch.finish_reasons
    )
    message.numerics_id = batch.numerics_id
    message.generation_time.CopyFrom(fields.duration_to_proto(batch.generation_seconds))
    if (experts := batch.routed_experts) is not None:
        fill_column(message.routed_experts.expert_ids, experts.expert_ids, DataType.INT32, encoding)
        message.routed_experts.layers = experts.layers
        message.routed_experts.top_k = experts.top_k


def trajectory_batch_from_proto(
    message: trajectory_pb2.TrajectoryBatch, *, max_tokens: int | None = None
) -> TrajectoryBatch:
    """Unpacks completions whose columns agree in length.

    Args:
        message: May be hostile.
        max_tokens: Most tokens of the whole batch.
    """
    samples = len(message.sample_indices)
    lengths = lengths_of(message, "lengths", length=samples)
    tokens = sum(lengths)
    if max_tokens is not None and tokens > max_tokens:
        raise invalid(
            "TrajectoryBatch.lengths", f"add up to {tokens} tokens, at most {max_tokens} fit", "TOO_LARGE"
        )
    if len(message.finish_reasons) != samples:
        raise invalid(
            "TrajectoryBatch.finish_reasons",
            f"has {len(message.finish_reasons)} elements, expected {samples}",
        )
    log_probs = fields.optional_column_of(message, "log_probs", DataType.FLOAT32, length=tokens)
    mask = fields.optional_column_of(message, "action_mask", DataType.UINT8, length=tokens)
    return TrajectoryBatch(
        group_id=message.group_id,
        sample_indices=tuple(message.sample_indices),
        lengths=lengths,
        token_ids=Int32Bytes(fields.column_of(message, "token_ids", DataType.INT32, length=tokens)),
        log_probs=None if log_probs is None else Float32Bytes(log_probs),
        action_mask=None if mask is None else UInt8Bytes(mask),
        version_spans=tuple(map(VersionSpan._make, map(_SPAN_FIELDS, message.version_spans))),
        finish_reasons=fields.members_of(
            FinishReason, message.finish_reasons, "TrajectoryBatch.finish_reasons"
        ),
        numerics_id=message.numerics_id,
        generation_seconds=fields.seconds_of(message, "generation_time"),
        routed_experts=_experts_from_proto(message, tokens),
    )


def _experts_from_proto(message: trajectory_pb2.TrajectoryBatch, tokens: int) -> RoutedExperts | None:
    if not message.HasField("routed_experts"):
        return None
    experts = message.routed_experts
    layers = fields.count_of(experts, "layers", 1)
    top_k = fields.count_of(experts, "top_k", 1)
    ids = fields.column_of(experts, "expert_ids", DataType.INT32, length=tokens * layers * top_k)
    return RoutedExperts(expert_ids=Int32Bytes(ids), layers=layers, top_k=top_k)


def score_batch_to_proto(
    batch: ScoreBatch, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> trajectory_pb2.ScoreBatch:
    """Packs log-probabilities of given tokens."""
    return trajectory_pb2.ScoreBatch(
        score_id=batch.score_id,
        log_probs=encode_column(batch.log_probs, DataType.FLOAT32, encoding),
        weight_version=batch.weight_version,
        numerics_id=batch.numerics_id,
    )


def score_batch_from_proto(
    message: trajectory_pb2.ScoreBatch, *, max_tokens: int | None = None
) -> ScoreBatch:
    """Unpacks log-probabilities of given tokens."""
    log_probs = fields.column_of(message, "log_probs", DataType.FLOAT32, max_elements=max_tokens)
    return ScoreBatch(
        score_id=message.score_id,
        log_probs=Float32Bytes(log_probs),
        weight_version=message.weight_version,
        numerics_id=message.numerics_id,
    )


def finished_group_to_proto(
    group: FinishedGroup, encoding: ColumnEncoding = ColumnEncoding.RAW
) -> training_service_pb2.FinishedGroup:
    """Packs a group with all its completions."""
    return training_service_pb2.FinishedGroup(
        group=prompt_group_to_proto(group.group, encoding),
        batches=[trajectory_batch_to_proto(batch, encoding) for batch in group.batches],
        version_steps=dict(group.version_steps),
        worker_names=group.worker_names,
        backends=group.backends,
    )


def finished_group_from_proto(message: training_service_pb2.FinishedGroup) -> FinishedGroup:
    """Unpacks a group with all its completions."""
    fields.require(message, "group")
    for field in ("worker_names", "backends"):
        names = len(getattr(message, field))
        if names != len(message.batches):
            raise invalid(f"FinishedGroup.{field}", f"has {names} elements, expected {len(message.batches)}")
    return FinishedGroup(
        group=prompt_group_from_proto(message.group),
        batches=tuple(trajectory_batch_from_proto(batch) for batch in message.batches),
        version_steps=dict(message.version_steps),
        worker_names=tuple(message.worker_names),
        backends=tuple(message.backends),
    )


def outcomes_to_proto(outcomes: Sequence[SequenceOutcome]) -> training_service_pb2.SequenceOutcomes:
    """Packs what became of each sequence; numbers are rounded to float32."""
    message = training_service_pb2.SequenceOutcomes(
        group_ids=[outcome.group_id for outcome in outcomes],
        sample_indices=_int32(outcome.sample_index for outcome in outcomes),
        rewards=_float32(outcome.reward for outcome in outcomes),
        advantages=_float32(outcome.advantage for outcome in outcomes),
        log_importance_ratios=_float32(outcome.log_importance_ratio for outcome in outcomes),
        coefficients=_float32(outcome.coefficient for outcome in outcomes),
        mean_absolute_gaps=_float32(outcome.mean_absolute_gap for outcome in outcomes),
        max_absolute_gaps=_float32(outcome.max_absolute_gap for outcome in outcomes),
        lags=_int32(outcome.lag for outcome in outcomes),
        dispositions=_int32(outcome.disposition for outcome in outcomes),
    )
    if any(outcome.staleness_log_ratio is not None for outcome in outcomes):
        message.staleness_log_ratios.CopyFrom(_optional(outcome.staleness_log_ratio for outcome in outcomes))
    if any(outcome.chip_log_ratio is not None for outcome in outcomes):
        message.chip_log_ratios.CopyFrom(_optional(outcome.chip_log_ratio for outcome in outcomes))
    return message


def _int32(values: Iterable[int]) -> columns_pb2.Column:
    return encode_column(int32_column(values), DataType.INT32)


def _float32(values: Iterable[float]) -> columns_pb2.Column:
    return encode_column(float32_column(values), DataType.FLOAT32)


def _optional(values: Iterable[float | None]) -> columns_pb2.Column:
    return _float32(math.nan if value is None else value for value in values)


def outcomes_from_proto(message: training_service_pb2.SequenceOutcomes) -> tuple[SequenceOutcome, ...]:
    """Unpacks what became of each sequence."""
    rows = len(message.group_ids)

    def integers(field: str) -> list[int]:
        return list(int32_view(fields.column_of(message, field, DataType.INT32, length=rows)))

    def numbers(field: str) -> list[float]:
        return list(float32_view(fields.column_of(message, field, DataType.FLOAT32, length=rows)))

    def optional_numbers(field: str) -> list[float | None]:
        values = numbers(field) if message.HasField(field) else [math.nan] * rows
        return [None if math.isnan(value) else value for value in values]

    dispositions = fields.members_of(Disposition, integers("dispositions"), "SequenceOutcomes.dispositions")
    columns = zip(
        message.group_ids,
        integers("sample_indices"),
        numbers("rewards"),
        numbers("advantages"),
        numbers("log_importance_ratios"),
        numbers("coefficients"),
        numbers("mean_absolute_gaps"),
        numbers("max_absolute_gaps"),
        integers("lags"),
        dispositions,
        optional_numbers("staleness_log_ratios"),
        optional_numbers("chip_log_ratios"),
        strict=True,
    )
    return tuple(itertools.starmap(_outcome, columns))


def _outcome(
    group_id: str,
    sample_index: int,
    reward: float,
    advantage: float,
    log_importance_ratio: float,
    coefficient: float,
    mean_absolute_gap: float,
    max_absolute_gap: float,
    lag: int,
    disposition: Disposition,
    staleness_log_ratio: float | None,
    chip_log_ratio: float | None,
) -> SequenceOutcome:
    return SequenceOutcome(
        group_id=group_id,
        sample_index=sample_index,
        reward=reward,
        advantage=advantage,
        log_importance_ratio=log_importance_ratio,
        coefficient=coefficient,
        mean_absolute_gap=mean_absolute_gap,
        max_absolute_gap=max_absolute_gap,
        lag=lag,
        disposition=disposition,
        staleness_log_ratio=staleness_log_ratio,
        chip_log_ratio=chip_log_ratio,
    )
