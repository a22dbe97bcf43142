"""From what an engine returns to what the hub takes. Pure functions."""

from collections.abc import Sequence

from hetero_rl.errors import EngineError
from hetero_rl.wire.columns import Float32Bytes, float32_column, int32_column
from hetero_rl.wire.messages import GenerateWork, TrajectoryBatch, VersionSpan
from hetero_rl.worker.engine import Completion

__all__ = ["split_by_size", "trajectory_batch"]

_BYTES_PER_TOKEN = 8
_BYTES_PER_SPAN = 32
_BYTES_PER_SAMPLE = 32
_BYTES_PER_MESSAGE = 1024


def trajectory_batch(
    work: GenerateWork, completions: Sequence[Completion], numerics_id: str, seconds: float
) -> TrajectoryBatch:
    """One batch of all completions of a lease.

    Args:
        work: What was asked for.
        completions: In the order of `work.sample_indices`.
        numerics_id: Of the engine.
        seconds: Time the engine worked on them.

    Raises:
        EngineError: The engine returned other samples than it was asked for.
    """
    if tuple(completion.sample_index for completion in completions) != work.sample_indices:
        raise EngineError(
            f"the engine returned samples {[completion.sample_index for completion in completions]} of group "
            f"{work.group_id!r}; {list(work.sample_indices)} were asked for"
        )
    return _batch(work.group_id, completions, numerics_id, seconds)


def split_by_size(
    batch: TrajectoryBatch, completions: Sequence[Completion], limit: int
) -> list[TrajectoryBatch]:
    """Parts of a batch that each fit into one message, in order; a single completion is never cut.

    Args:
        batch: All completions of a lease.
        completions: The same ones.
        limit: Bytes of one message.
    """
    parts: list[list[Completion]] = [[]]
    size = _BYTES_PER_MESSAGE
    for completion in completions:
        needed = (
            _BYTES_PER_SAMPLE
            + _BYTES_PER_TOKEN * len(completion.token_ids)
            + _BYTES_PER_SPAN * len(completion.spans)
        )
        if parts[-1] and size + needed > limit:
            parts.append([])
            size = _BYTES_PER_MESSAGE
        parts[-1].append(completion)
        size += needed
    if len(parts) == 1:
        return [batch]
    share = batch.generation_seconds / len(parts)
    return [_batch(batch.group_id, part, batch.numerics_id, share) for part in parts]


def _batch(
    group_id: str, completions: Sequence[Completion], numerics_id: str, seconds: float
) -> TrajectoryBatch:
    spans = [
        VersionSpan(position, span.start, span.end, span.weight_version)
        for position, completion in enumerate(completions)
        for span in completion.spans
    ]
    return TrajectoryBatch(
        group_id=group_id,
        sample_indices=tuple(completion.sample_index for completion in completions),
        lengths=tuple(len(completion.token_ids) for completion in completions),
        token_ids=int32_column(token for completion in completions for token in completion.token_ids),
        log_probs=_log_probs(completions),
        version_spans=tuple(spans),
        finish_reasons=tuple(completion.finish_reason for completion in completions),
        numerics_id=numerics_id,
        generation_seconds=seconds,
    )


def _log_probs(completions: Sequence[Completion]) -> Float32Bytes | None:
    values: list[float] = []
    for completion in completions:
        if completion.log_probs is None:
            return None
        values.extend(completion.log_probs)
    return float32_column(values)
