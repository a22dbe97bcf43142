"""Checks of results that a worker hands in, against its lease, the run's limits and the published versions.

A log-probability must be finite and not above 0, exactly: an engine that computes it as logit minus log-sum-exp can
round to at most 0 when it subtracts the maximum first, so anything above is a wrong number and not noise. Both zeros pass.
"""

import itertools
from collections.abc import Container, Iterator

from hetero_rl.wire.columns import int32_view
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    FinishReason,
    GenerateWork,
    Lease,
    Purpose,
    RunDescription,
    ScoreBatch,
    ScoreWork,
    Submission,
    TrajectoryBatch,
    VersionSpan,
)
from hetero_rl.wire.validation.columns import (
    aligned_positions,
    first_not_below,
    first_not_log_prob,
    first_not_mask,
)

__all__ = ["check_submission"]

_MAX_EXPERTS = 2**16


def check_submission(
    submission: Submission,
    lease: Lease,
    run: RunDescription,
    known_versions: Container[int],
    *,
    numerics_id: str | None = None,
) -> None:
    """Refuses results that do not answer the lease or that cannot be right.

    Args:
        submission: Converted, not yet trusted.
        lease: The lease that the submission names.
        run: Limits and vocabulary.
        known_versions: Every published weight version.
        numerics_id: What the worker joined with; None does not compare.

    Raises:
        InvalidMessageError: Names the first field that is wrong. Its reason is UNKNOWN_VERSION for a version that was
            never published, TOO_LARGE beyond a limit, INVALID_FIELD otherwise.
    """
    results = submission.results
    if numerics_id is not None and results.numerics_id != numerics_id:
        raise invalid(
            f"{type(results).__name__}.numerics_id",
            f"is {results.numerics_id!r}, the worker joined with {numerics_id!r}: join again",
        )
    match lease.work, results:
        case GenerateWork() as work, TrajectoryBatch() as batch:
            _check_trajectories(batch, work, run)
            _check_versions(batch, lease.min_weight_version, known_versions)
        case ScoreWork() as work, ScoreBatch() as scores:
            _check_scores(scores, work)
        case _:
            raise invalid(
                "SubmitResultsRequest.results",
                f"is a {type(results).__name__}, the lease is of {type(lease.work).__name__}",
            )


def _check_trajectories(batch: TrajectoryBatch, work: GenerateWork, run: RunDescription) -> None:
    if batch.group_id != work.group_id:
        raise invalid("TrajectoryBatch.group_id", f"is {batch.group_id!r}, the lease is of {work.group_id!r}")
    _check_samples(batch, work)
    _check_lengths(batch, work, run)
    _check_columns(batch, work, run.limits.vocabulary_size)
    _check_spans(batch)
    _check_endings(batch, work)


def _check_samples(batch: TrajectoryBatch, work: GenerateWork) -> None:
    indices = batch.sample_indices
    if not indices:
        raise invalid("TrajectoryBatch.sample_indices", "is empty, expected at least one sample")
    if any(left >= right for left, right in itertools.pairwise(indices)):
        raise invalid(
            "TrajectoryBatch.sample_indices", f"is {list(indices[:16])}, expected ascending indices"
        )
    if strangers := set(indices) - set(work.sample_indices):
        raise invalid(
            "TrajectoryBatch.sample_indices", f"holds {min(strangers)}, which the lease does not ask for"
        )


def _check_lengths(batch: TrajectoryBatch, work: GenerateWork, run: RunDescription) -> None:
    most = min(work.sampling.max_new_tokens, run.limits.max_completion_tokens)
    if len(batch.lengths) != len(batch.sample_indices):
        raise invalid(
            "TrajectoryBatch.lengths",
            f"has {len(batch.lengths)} elements, expected {len(batch.sample_indices)}",
        )
    if not 1 <= min(batch.lengths) <= max(batch.lengths) <= most:
        wrong = next(length for length in batch.lengths if not 1 <= length <= most)
        raise invalid("TrajectoryBatch.lengths", f"holds {wrong}, expected 1 to {most} tokens", "TOO_LARGE")


def _check_columns(batch: TrajectoryBatch, work: GenerateWork, vocabulary_size: int) -> None:
    tokens = sum(batch.lengths)
    _check_token_ids(batch.token_ids, tokens, vocabulary_size, "TrajectoryBatch.token_ids")
    if batch.log_probs is not None:
        _check_log_probs(batch.log_probs, tokens, "TrajectoryBatch.log_probs")
    elif work.purpose is Purpose.TRAIN:
        raise invalid("TrajectoryBatch.log_probs", "is missing, training needs one for each token")
    if batch.action_mask is not None:
        _check_size(batch.action_mask, tokens, 1, "TrajectoryBatch.action_mask")
        if (wrong := first_not_mask(batch.action_mask)) is not None:
            value = batch.action_mask[wrong]
            raise invalid("TrajectoryBatch.action_mask", f"holds {value} at token {wrong}, expected 0 or 1")
    if (experts := batch.routed_experts) is not None:
        field = "TrajectoryBatch.routed_experts"
        _check_token_ids(experts.expert_ids, tokens * experts.layers * experts.top_k, _MAX_EXPERTS, field)


def _check_size(column: bytes, elements: int, item_size: int, field: str) -> None:
    if len(column) != elements * item_size:
        raise invalid(field, f"has {len(column)} bytes, expected {elements} elements of {item_size}")


def _check_token_ids(column: bytes, tokens: int, bound: int, field: str) -> None:
    _check_size(column, tokens, 4, field)
    if (wrong := first_not_below(column, bound)) is not None:
        value = int32_view(column)[wrong]
        raise invalid(field, f"holds {value} at position {wrong}, expected ids in [0, {bound})")


def _check_log_probs(column: bytes, tokens: int, field: str) -> None:
    _check_size(column, tokens, 4, field)
    if (wrong := first_not_log_prob(column)) is not None:
        value = memoryview(column).cast("f")[wrong]
        raise invalid(field, f"holds {value} at position {wrong}, expected finite numbers not above 0")


def _check_spans(batch: TrajectoryBatch) -> None:
    """The spans must walk through every sample from its first token to its last, in order."""
    field = "TrajectoryBatch.version_spans"
    sample, position = 0, 0
    for span in batch.version_spans:
        if sample == len(batch.lengths):
            raise invalid(field, f"goes on with {_describe(span)} behind the last token")
        if (span.sample, span.start) != (sample, position) or not position < span.end <= batch.lengths[
            sample
        ]:
            raise invalid(
                field,
                f"has {_describe(span)}, expected one that starts at token {position} of sample {sample}"
                f" and ends at most at {batch.lengths[sample]}",
            )
        position = span.end
        if position == batch.lengths[sample]:
            sample, position = sample + 1, 0
    if sample != len(batch.lengths):
        raise invalid(field, f"ends at token {position} of sample {sample}, expected every token covered")


def _describe(span: VersionSpan) -> str:
    return f"[{span.start}, {span.end}) of sample {span.sample}"


def _check_versions(batch: TrajectoryBatch, least: int, known_versions: Container[int]) -> None:
    field = "TrajectoryBatch.version_spans"
    for version in sorted({span.weight_version for span in batch.version_spans}):
        if version not in known_versions:
            raise invalid(field, f"names version {version}, which was never published", "UNKNOWN_VERSION")
        if version < least:
            raise invalid(field, f"names version {version}, the lease asks for at least {least}")


def _check_endings(batch: TrajectoryBatch, work: GenerateWork) -> None:
    """Finish reasons must fit the tokens: STOP ends in a stop token, and only there, LENGTH has all tokens allowed.

    Tokens that the policy did not choose (an action mask) may bring stop tokens of their own in the middle.
    """
    if len(batch.finish_reasons) != len(batch.lengths):
        raise invalid(
            "TrajectoryBatch.finish_reasons",
            f"has {len(batch.finish_reasons)} elements, expected {len(batch.lengths)}",
        )
    stops = {position for value in work.sampling.stop_token_ids for position in _positions(batch, value)}
    most = work.sampling.max_new_tokens
    stop, exhausted = FinishReason.STOP, FinishReason.LENGTH
    endings = zip(itertools.accumulate(batch.lengths), batch.lengths, batch.finish_reasons, strict=True)
    for sample, (end, length, reason) in enumerate(endings):
        stopped = end - 1 in stops
        stops.discard(end - 1)
        if stopped is not (reason is stop):
            ending = "a stop token" if stopped else "no stop token"
            raise invalid(
                "TrajectoryBatch.finish_reasons",
                f"is {reason.name} for sample {sample}, which ends in {ending}",
            )
        if reason is exhausted and length != most:
            raise invalid(
                "TrajectoryBatch.finish_reasons",
                f"is LENGTH for sample {sample} of {length} tokens, expected {most}",
            )
    if stops and batch.action_mask is None:
        raise invalid(
            "TrajectoryBatch.token_ids", f"has a stop token at position {min(stops)}, inside a completion"
        )


def _positions(batch: TrajectoryBatch, value: int) -> Iterator[int]:
    return aligned_positions(batch.token_ids, value)


def _check_scores(scores: ScoreBatch, work: ScoreWork) -> None:
    if scores.score_id != work.score_id:
        raise invalid("ScoreBatch.score_id", f"is {scores.score_id!r}, the lease is of {work.score_id!r}")
    if scores.weight_version != work.weight_version:
        raise invalid(
            "ScoreBatch.weight_version",
            f"is {scores.weight_version}, the lease asks for {work.weight_version}",
        )
    _check_log_probs(scores.log_probs, sum(work.lengths) - len(work.lengths), "ScoreBatch.log_probs")
