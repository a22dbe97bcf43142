"""From completions to what the hub takes."""

import pytest

from hetero_rl.errors import EngineError
from hetero_rl.wire.columns import float32_view, int32_column, int32_view
from hetero_rl.wire.messages import FinishReason, GenerateWork, Purpose, SamplingParameters, VersionSpan
from hetero_rl.worker.engine import Completion, CompletionSpan
from hetero_rl.worker.results import split_by_size, trajectory_batch


def completion(index, tokens, *, log_probs=True, versions=((0, 1),)) -> Completion:
    starts = [start for start, _ in versions] + [len(tokens)]
    return Completion(
        sample_index=index,
        token_ids=tokens,
        log_probs=[-0.5] * len(tokens) if log_probs else None,
        spans=tuple(
            CompletionSpan(start, end, version)
            for (start, version), end in zip(versions, starts[1:], strict=True)
        ),
        finish_reason=FinishReason.STOP,
    )


def work(*indices) -> GenerateWork:
    return GenerateWork(
        group_id="g",
        purpose=Purpose.TRAIN,
        prompt_token_ids=int32_column([1]),
        sample_indices=indices,
        sampling=SamplingParameters(max_new_tokens=9, stop_token_ids=(2,)),
    )


def test_columns_hold_the_completions_one_after_another():
    batch = trajectory_batch(
        work(2, 5), [completion(2, [7, 8, 2], versions=((0, 3), (2, 4))), completion(5, [2])], "n", 1.5
    )
    assert batch.sample_indices == (2, 5)
    assert batch.lengths == (3, 1)
    assert list(int32_view(batch.token_ids)) == [7, 8, 2, 2]
    assert list(float32_view(batch.log_probs)) == [-0.5] * 4
    assert batch.version_spans == (VersionSpan(0, 0, 2, 3), VersionSpan(0, 2, 3, 4), VersionSpan(1, 0, 1, 1))
    assert (batch.numerics_id, batch.generation_seconds) == ("n", 1.5)


def test_greedy_completions_have_no_log_probs():
    assert trajectory_batch(work(0), [completion(0, [3, 2], log_probs=False)], "n", 1.0).log_probs is None


def test_other_samples_than_asked_for_are_an_engine_error():
    with pytest.raises(EngineError, match=r"\[1\].*\[0\]"):
        trajectory_batch(work(0), [completion(1, [2])], "n", 1.0)


def test_what_fits_into_one_message_stays_whole():
    completions = [completion(index, [3] * 10) for index in range(4)]
    batch = trajectory_batch(work(0, 1, 2, 3), completions, "n", 1.0)
    assert split_by_size(batch, completions, 10_000) == [batch]


def test_what_does_not_fit_is_split_between_completions():
    completions = [completion(index, [3] * 100) for index in range(5)]
    batch = trajectory_batch(work(0, 1, 2, 3, 4), completions, "n", 1.0)
    # 1024 bytes of a message, then 864 for each completion: two fit.
    parts = split_by_size(batch, completions, 1024 + 2 * 864)
    assert [part.sample_indices for part in parts] == [(0, 1), (2, 3), (4,)]
    assert b"".join(part.token_ids for part in parts) == batch.token_ids
    assert [span.sample for span in parts[1].version_spans] == [0, 1]


def test_a_single_completion_is_never_cut():
    completions = [completion(index, [3] * 100) for index in range(2)]
    batch = trajectory_batch(work(0, 1), completions, "n", 1.0)
    assert [part.lengths for part in split_by_size(batch, completions, 10)] == [(100,), (100,)]
