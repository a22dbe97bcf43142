import math

import pytest
import torch

from hetero_rl.trainer import selected as module
from hetero_rl.trainer.selected import selected_log_probs


def test_numbers_of_a_two_token_vocabulary():
    # logits (0, ln 3): probabilities 1/4 and 3/4.
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 5.0]])

    result = selected_log_probs(logits, torch.tensor([0, 1]), torch.tensor([1, 0]))

    assert result.tolist() == pytest.approx([math.log(0.75), math.log(0.5)])


def test_temperature_divides_the_logits():
    # At temperature 1/2 the logit ln 3 counts as ln 9: probability 9/10.
    logits = torch.tensor([[0.0, math.log(3)]])

    result = selected_log_probs(logits, torch.tensor([0]), torch.tensor([1]), temperature=0.5)

    assert result.item() == pytest.approx(math.log(0.9))


def test_gradient_is_one_hot_minus_softmax():
    logits = torch.tensor([[0.0, math.log(3)]], requires_grad=True)

    selected_log_probs(logits, torch.tensor([0]), torch.tensor([1])).sum().backward()

    assert logits.grad.tolist()[0] == pytest.approx([-0.25, 0.25])


@pytest.mark.parametrize("chunk_elements", [1, 24, 2**24])
def test_chunks_change_neither_values_nor_gradients(monkeypatch, chunk_elements):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk_elements)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(7, 12, generator=generator, dtype=torch.float64).float().requires_grad_()
    rows, tokens = torch.tensor([6, 0, 3, 4]), torch.tensor([1, 11, 0, 5])
    weights = torch.tensor([0.5, -2.0, 1.0, 3.0])

    result = selected_log_probs(logits, rows, tokens, temperature=0.7)
    (gradient,) = torch.autograd.grad((result * weights).sum(), logits)
    reference = (logits / 0.7).log_softmax(-1)[rows, tokens]
    (expected,) = torch.autograd.grad((reference * weights).sum(), logits)

    torch.testing.assert_close(result, reference)
    torch.testing.assert_close(gradient, expected)


def test_a_row_that_predicts_several_tokens_gets_all_their_gradients():
    # Probabilities 1/4 and 3/4; the tokens 1 and 0 are both predicted by the row.
    logits = torch.tensor([[0.0, math.log(3)]], requires_grad=True)

    selected_log_probs(logits, torch.tensor([0, 0]), torch.tensor([1, 0])).sum().backward()

    assert logits.grad.tolist()[0] == pytest.approx([-0.25 + 0.75, 0.25 - 0.75])


def test_bfloat16_logits_are_read_in_float32():
    logits = torch.tensor([[0.0, 3.0, -2.0]], dtype=torch.bfloat16)

    result = selected_log_probs(logits, torch.tensor([0]), torch.tensor([0]))

    assert result.dtype == torch.float32
    assert result.item() == pytest.approx(-math.log(1 + math.exp(3) + math.exp(-2)), abs=1e-6)
