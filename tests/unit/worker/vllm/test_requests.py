"""What is asked of vLLM and what is made of its answers, on answers written by hand."""

from types import SimpleNamespace

import pytest

from hetero_rl.errors import BackendError
from hetero_rl.wire.messages import FinishReason, SamplingParameters
from hetero_rl.worker.engine import CompletionSpan
from hetero_rl.worker.engines.vllm.requests import (
    Progress,
    decoding_parameters,
    request_seed,
    scored_log_probs,
)


def flat(*entries):
    """`FlatLogprobs` of positions of (token, log-probability) pairs; an empty position has none."""
    starts, tokens, values = [], [], []
    for position in entries:
        starts.append(len(values))
        tokens += [token for token, _ in position]
        values += [value for _, value in position]
    return SimpleNamespace(start_indices=starts, token_ids=tokens, logprobs=values)


def output(tokens, reason, **more):
    log_probs = flat(*([(token, -0.1 * token)] for token in tokens))
    return SimpleNamespace(token_ids=tokens, logprobs=log_probs, finish_reason=reason, **more)


def labels(*spans):
    return [SimpleNamespace(version=version, start=start, end=end) for version, start, end in spans]


def test_a_completion_that_a_pause_stopped_keeps_its_tokens_and_goes_on_under_the_next_version():
    progress = Progress(0, greedy=False)

    progress.add(output([5, 6], "abort"), 1, labelled=False)
    assert progress.finish_reason is None
    progress.add(output([7], "stop"), 2, labelled=False)

    completion = progress.completion()
    assert completion.token_ids == [5, 6, 7]
    assert completion.log_probs == pytest.approx([-0.5, -0.6, -0.7])
    assert completion.spans == (CompletionSpan(0, 2, 1), CompletionSpan(2, 3, 2))
    assert completion.finish_reason == FinishReason.STOP


def test_a_request_that_was_stopped_before_its_first_token_leaves_no_span():
    progress = Progress(0, greedy=False)

    progress.add(output([], "abort"), 1, labelled=False)
    progress.add(output([5], "length"), 2, labelled=False)

    assert progress.completion().spans == (CompletionSpan(0, 1, 2),)


def test_labels_of_the_engine_outweigh_the_version_that_was_served_when_the_request_began():
    progress = Progress(0, greedy=False)

    progress.add(
        output([5, 6, 7], "length", weight_versions=labels(("3", 0, 2), ("4", 2, 3))), 3, labelled=True
    )

    assert progress.completion().spans == (CompletionSpan(0, 2, 3), CompletionSpan(2, 3, 4))


@pytest.mark.parametrize(
    "spans",
    [[], [("3", 0, 2)], [("3", 0, 1), ("4", 2, 3)], [("3", 1, 3)]],
    ids=["none", "short", "gap", "late"],
)
def test_labels_that_do_not_cover_the_tokens_are_refused(spans):
    with pytest.raises(BackendError, match="labelled"):
        Progress(0, greedy=False).add(
            output([5, 6, 7], "length", weight_versions=labels(*spans)), 3, labelled=True
        )


@pytest.mark.parametrize("reason", ["error", "repetition", None])
def test_a_completion_that_ended_for_another_reason_is_refused_and_not_begun_again(reason):
    with pytest.raises(BackendError, match="ended a completion"):
        Progress(0, greedy=False).add(output([5], reason), 1, labelled=False)


def test_the_log_prob_of_the_sampled_token_is_taken_and_not_that_of_the_likeliest():
    both = flat([(5, -2.0), (9, -0.1)], [(6, -1.0), (9, -0.2)])
    progress = Progress(0, greedy=False)

    progress.add(SimpleNamespace(token_ids=[5, 6], logprobs=both, finish_reason="stop"), 1, labelled=False)

    assert progress.log_probs == [-2.0, -1.0]


def test_log_probs_of_other_tokens_or_too_few_are_refused():
    other = SimpleNamespace(token_ids=[5], logprobs=flat([(6, -1.0)]), finish_reason="stop")
    too_few = SimpleNamespace(token_ids=[5, 6], logprobs=flat([(5, -1.0)]), finish_reason="stop")

    with pytest.raises(BackendError, match="other tokens"):
        Progress(0, greedy=False).add(other, 1, labelled=False)
    with pytest.raises(BackendError, match="1 log-probabilities for 2 tokens"):
        Progress(0, greedy=False).add(too_few, 1, labelled=False)


def test_scores_leave_out_the_first_token_which_has_none():
    assert scored_log_probs(flat([], [(8, -0.5)], [(9, -0.25)]), [7, 8, 9]) == [-0.5, -0.25]


def test_a_rounding_above_zero_is_zero():
    assert scored_log_probs(flat([], [(8, 1e-7)]), [7, 8]) == [0.0]


def test_seeds_differ_between_samples_and_segments_and_stay_the_same_otherwise():
    seeds = {request_seed(1, sample, offset) for sample in range(4) for offset in range(4)}

    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(1, 2, 3) == request_seed(1, 2, 3)
    assert request_seed(None, 2, 3) is None


def test_only_the_stop_tokens_of_the_work_end_a_completion_and_greedy_work_asks_for_no_log_probs():
    work = SamplingParameters(max_new_tokens=9, stop_token_ids=(2, 3))
    greedy = SamplingParameters(max_new_tokens=9, stop_token_ids=(), temperature=0.0)

    asked = decoding_parameters(work, seed=1, max_tokens=9)

    assert (asked["stop_token_ids"], asked["ignore_eos"], asked["logprobs"]) == ([2, 3], True, 0)
    assert decoding_parameters(greedy, seed=1, max_tokens=9)["logprobs"] is None
