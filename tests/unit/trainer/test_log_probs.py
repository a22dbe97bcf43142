import pytest
import torch

from hetero_rl.trainer.batch import build_batch
from hetero_rl.trainer.log_probs import completion_log_probs


@pytest.fixture
def batch(make_group):
    groups = [make_group(0, [5, 6, 7], [[7, 2], [2]]), make_group(1, [4], [[3, 8, 9, 1], [1, 1]])]
    return build_batch(1, groups, [[0.0, 1.0]] * 2, max_lag=0, vocabulary_size=12)


def alone(policy, batch, sequence):
    """Log-probabilities of one sequence by the plain formula, without any padding."""
    prompt, completion = batch.prompt_of(sequence), batch.completion_of(sequence)
    ids = torch.cat([prompt, completion])[None]
    log_probs = policy.model(input_ids=ids).logits[0].log_softmax(-1)
    return torch.stack([log_probs[len(prompt) - 1 + i, token] for i, token in enumerate(completion)])


def test_a_padded_micro_batch_gives_each_sequence_its_own_numbers(policy, batch):
    result = completion_log_probs(policy, batch, [(2,), (0,), (3,), (1,)])

    expected = torch.cat([alone(policy, batch, sequence) for sequence in (2, 0, 3, 1)])
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)


def test_completions_that_share_a_prompt_get_the_same_numbers(policy, batch):
    result = completion_log_probs(policy, batch, [(3, 2), (0, 1)])

    expected = torch.cat([alone(policy, batch, sequence) for sequence in (3, 2, 0, 1)])
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)
