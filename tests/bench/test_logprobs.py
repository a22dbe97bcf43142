import pytest
import torch

from hetero_rl.bench import logprobs


@pytest.mark.parametrize("sequences", [1, 4])
def test_the_three_contenders_would_be_given_the_same_problem_and_agree(sequences):
    problem = logprobs.make_problem(sequences, 32, 8, 40)

    ours, theirs = logprobs.chunked(problem), logprobs.naive(problem)

    assert problem.lengths == (32 // sequences,) * sequences
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5)


def test_without_the_peers_environment_only_their_figures_are_left_out(monkeypatch, caplog):
    monkeypatch.setattr(logprobs, "peer_python", lambda: None)

    assert logprobs._against_liger(logprobs.make_problem(2, 8, 4, 16)) == []
    assert "make test-parity" in caplog.text
