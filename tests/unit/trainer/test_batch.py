import dataclasses

import pytest
import torch

from hetero_rl.errors import InvalidMessageError
from hetero_rl.trainer.batch import build_batch, completions_of
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import Disposition, FinishReason, VersionSpan


def build(groups, rewards, *, step=1, max_lag=2):
    return build_batch(step, groups, rewards, max_lag=max_lag, vocabulary_size=12)


def test_columns_hold_the_groups_one_after_another(make_group):
    first = make_group(0, [5, 6], [[7, 2], [2]], log_probs=[[-0.5, -0.1], [-2.0]])
    second = make_group(1, [4], [[3], [1, 1]], log_probs=[[-1.0], [-0.25, -3.0]], backend="ascend")

    batch = build([first, second], [[1.0, 0.0], [0.5, 0.25]])

    assert batch.prompt_ids.tolist() == [5, 6, 4]
    assert batch.prompt_lengths.tolist() == [2, 1]
    assert batch.group_of_sequence.tolist() == [0, 0, 1, 1]
    assert batch.token_ids.tolist() == [7, 2, 2, 3, 1, 1]
    assert batch.lengths.tolist() == [2, 1, 1, 2]
    assert batch.behavior_log_probs.tolist() == pytest.approx([-0.5, -0.1, -2.0, -1.0, -0.25, -3.0])
    assert batch.rewards.tolist() == [1.0, 0.0, 0.5, 0.25]
    assert batch.backends == ("cpu", "cpu", "ascend", "ascend")
    assert batch.total_lengths == [4, 3, 2, 3]
    assert batch.prompt_of(3).tolist() == [4]
    assert batch.completion_of(3).tolist() == [1, 1]


def test_lag_is_the_steps_applied_less_the_steps_in_the_oldest_version(make_group):
    spans = [VersionSpan(0, 0, 1, 4), VersionSpan(0, 1, 2, 6)]
    group = make_group(0, [5], [[1, 2]], spans=spans, version_steps={4: 3, 6: 5})

    # Step 6 is trained when 5 are applied: the first token is 2 steps old, the second 0.
    batch = build([group], [[1.0]], step=6)

    assert batch.lags.tolist() == [2]
    assert batch.token_versions.tolist() == [4, 6]


def test_a_version_from_after_the_resumed_step_counts_its_distance(make_group):
    group = make_group(0, [5], [[1]], version=9, version_steps={9: 7})

    assert build([group], [[1.0]], step=6).lags.tolist() == [2]


def test_stale_and_incomplete_sequences_are_left_out_and_counted(make_group):
    stale = make_group(0, [5], [[1], [2]], version=1, version_steps={1: 0})
    cut = make_group(
        1,
        [5],
        [[3, 4], [1]],
        version=4,
        version_steps={4: 3},
        reasons=[FinishReason.ABORTED, FinishReason.STOP],
    )

    batch = build([stale, cut], [[1.0, 0.0], [0.5, 0.75]], step=4, max_lag=2)

    assert batch.token_ids.tolist() == [1]
    assert batch.rewards.tolist() == [0.75]
    assert [(entry.group_id, entry.sample_index, entry.cause, entry.lag) for entry in batch.dropped] == [
        ("train-00000000", 0, Disposition.DROPPED_STALE, 3),
        ("train-00000000", 1, Disposition.DROPPED_STALE, 3),
        ("train-00000001", 0, Disposition.DROPPED_INCOMPLETE, 0),
    ]


def test_a_batch_of_which_nothing_is_left_has_empty_columns(make_group):
    batch = build([make_group(0, [5], [[1]])], [[1.0]], step=9, max_lag=2)

    assert batch.sequences == 0
    assert batch.token_ids.shape == (0,)
    assert batch.behavior_log_probs.dtype == torch.float32


def test_samples_of_several_submissions_are_put_in_order(make_group):
    whole = make_group(0, [5], [[1], [2, 2], [3]])
    late, early = (
        dataclasses.replace(
            whole.batches[0],
            sample_indices=indices,
            lengths=lengths,
            token_ids=int32_column(ids),
            log_probs=float32_column([-1.0] * len(ids)),
            version_spans=tuple(VersionSpan(i, 0, n, 1) for i, n in enumerate(lengths)),
            finish_reasons=(FinishReason.STOP,) * len(lengths),
        )
        for indices, lengths, ids in (((1, 2), (2, 1), [2, 2, 3]), ((0,), (1,), [1]))
    )
    group = dataclasses.replace(
        whole, batches=(late, early), worker_names=("b", "a"), backends=("rocm", "cpu")
    )

    batch = build([group], [[0.0, 1.0, 2.0]])

    assert batch.token_ids.tolist() == [1, 2, 2, 3]
    assert batch.backends == ("cpu", "rocm", "rocm")
    assert completions_of(group) == [[1], [2, 2], [3]]


def test_a_missing_sample_is_refused(make_group):
    group = make_group(0, [5], [[1], [2]])
    short = dataclasses.replace(group, group=dataclasses.replace(group.group, group_size=3))

    with pytest.raises(InvalidMessageError, match=r"samples 0 to 2 once each, it holds \[0, 1\]"):
        build([short], [[1.0, 0.0]])


def test_an_id_outside_the_vocabulary_is_refused(make_group):
    with pytest.raises(InvalidMessageError, match="the model's ids are 0 to 11"):
        build([make_group(0, [5], [[12]])], [[1.0]])


def test_a_prompt_id_outside_the_vocabulary_is_refused(make_group):
    with pytest.raises(InvalidMessageError, match="prompt ids must lie in 0 to 11"):
        build([make_group(0, [-1], [[1]])], [[1.0]])


def test_columns_of_different_lengths_are_refused(make_group):
    with pytest.raises(InvalidMessageError, match="log_probs has 1 elements, lengths add up to 2"):
        build([make_group(0, [5], [[1, 2]], log_probs=[[-1.0]])], [[1.0]])


def test_greedy_completions_cannot_be_trained_on(make_group):
    group = make_group(0, [5], [[1]])
    greedy = dataclasses.replace(group, batches=(dataclasses.replace(group.batches[0], log_probs=None),))

    with pytest.raises(InvalidMessageError, match="no log-probabilities"):
        build([greedy], [[1.0]])


def test_spans_that_leave_a_token_out_are_refused(make_group):
    with pytest.raises(InvalidMessageError, match="do not cover every token"):
        build([make_group(0, [5], [[1, 2]], spans=[VersionSpan(0, 0, 1, 1)])], [[1.0]])


def test_a_version_without_a_step_is_refused(make_group):
    with pytest.raises(InvalidMessageError, match=r"weight versions \[3\]"):
        build([make_group(0, [5], [[1]], version=3, version_steps={1: 0})], [[1.0]])
