import math

import pytest
import torch

from hetero_rl.trainer import head_chunks
from hetero_rl.trainer.head_chunks import HeadProjection
from hetero_rl.trainer.head_loss import HeadTargets, head_log_probs, head_loss
from hetero_rl.trainer.output_head import OutputHead

HEADS = {
    "plain": OutputHead(),
    "scaled": OutputHead(scale=0.3),
    "capped": OutputHead(soft_cap=1.5),
    "both": OutputHead(scale=1.7, soft_cap=2.0),
}
LENGTHS = (3, 1, 6, 2)
WIDTH, VOCABULARY = 5, 11


class Problem:
    """Random numbers with hidden states that predict several tokens, and the plain formula for all of them."""

    def __init__(self, *, bias=False, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(9, WIDTH, generator=generator)
        self.weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
        self.bias = torch.randn(VOCABULARY, generator=generator) if bias else None
        rows = torch.tensor([0, 1, 2, 0, 0, 3, 4, 5, 6, 7, 0, 8])
        self.targets = HeadTargets(rows, torch.randint(VOCABULARY, (12,), generator=generator), LENGTHS)
        self.factors = torch.randn(4, generator=generator)
        self.noise = torch.randn(12, generator=generator)
        self.of_entropy = torch.randn(12, generator=generator)

    def leaves(self):
        found = [self.hidden, self.weight, *([] if self.bias is None else [self.bias])]
        return [leaf.clone().requires_grad_() for leaf in found]

    def reference(self, head, temperature, weigh, of_entropy=None):
        hidden, weight, *bias = leaves = self.leaves()
        logits = head.logits(hidden, weight, bias[0] if bias else None)[self.targets.rows] / temperature
        distribution = logits.log_softmax(-1)
        log_probs = distribution.gather(-1, self.targets.token_ids[:, None])[:, 0]
        entropies = -(distribution.exp() * distribution).sum(-1)
        weights = torch.cat(
            [weigh(i, i + 1, part) for i, part in enumerate(log_probs.detach().split(LENGTHS))]
        )
        loss = (weights * log_probs).sum()
        if of_entropy is not None:
            loss += (of_entropy * entropies).sum()
        return loss, log_probs, entropies, torch.autograd.grad(loss, leaves)

    def chunked(self, head, temperature, weigh, of_entropy=None, **options):
        hidden, weight, *bias = leaves = self.leaves()
        projection = HeadProjection(
            head, weight, bias[0] if bias else None, dtype=torch.float32, temperature=temperature
        )
        loss, known = head_loss(
            projection,
            hidden,
            weight,
            bias[0] if bias else None,
            self.targets,
            weigh,
            entropy_weights=of_entropy,
            **options,
        )
        return loss, known, torch.autograd.grad(loss, leaves)

    def by_sequence(self, first, after, log_probs):
        """One weight for each sequence, which takes all its log-probabilities."""
        parts = log_probs.split(LENGTHS[first:after])
        return torch.cat(
            [(self.factors[first + i] * part.mean().exp()).expand(part.shape) for i, part in enumerate(parts)]
        )

    def by_token(self, first, after, log_probs):
        start = sum(LENGTHS[:first])
        return self.by_sequence(first, after, log_probs) * self.noise[start : start + log_probs.numel()]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_numbers_of_a_two_token_vocabulary():
    # Logits (0, ln 3): probabilities 1/4 and 3/4; entropy ln 4 - 3/4 ln 3. Weight 2 on token 1.
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [math.log(3)]], requires_grad=True)
    projection = HeadProjection(OutputHead(), weight, None, dtype=torch.float32, temperature=1.0)
    targets = HeadTargets(torch.tensor([0]), torch.tensor([1]), (1,))

    loss, known = head_loss(
        projection, hidden, weight, None, targets, lambda *_: torch.tensor([2.0]), entropies=True
    )
    loss.backward()

    assert known.log_probs.tolist() == pytest.approx([math.log(0.75)])
    assert known.entropies.tolist() == pytest.approx([math.log(4) - 0.75 * math.log(3)])
    assert loss.item() == pytest.approx(2 * math.log(0.75))
    # 2 (one_hot - p) h, and 2 (W_1 - p W).
    assert weight.grad.flatten().tolist() == pytest.approx([-0.5, 0.5])
    assert hidden.grad.item() == pytest.approx(2 * (math.log(3) - 0.75 * math.log(3)))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
@pytest.mark.parametrize("weighing", ["by_sequence", "by_token"])
def test_loss_and_gradients_are_those_of_the_plain_formula(monkeypatch, kind, bias, chunk_tokens, weighing):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", chunk_tokens * VOCABULARY)
    monkeypatch.setattr(head_chunks, "BLOCK_ELEMENTS", 2 * VOCABULARY)
    problem = Problem(bias=bias)
    weigh = getattr(problem, weighing)

    loss, log_probs, _, expected = problem.reference(HEADS[kind], 0.7, weigh)
    found_loss, known, found = problem.chunked(HEADS[kind], 0.7, weigh)

    assert found_loss.item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(known.log_probs, log_probs.detach(), atol=2e-6, rtol=1e-6)
    assert known.entropies is None
    assert_same(found, expected)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("chunk_tokens", [2, 100])
def test_a_loss_on_entropies_is_differentiated_exactly(monkeypatch, kind, chunk_tokens):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", chunk_tokens * VOCABULARY)
    problem = Problem(bias=True)

    loss, _, entropies, expected = problem.reference(
        HEADS[kind], 1.3, problem.by_sequence, problem.of_entropy
    )
    found_loss, known, found = problem.chunked(HEADS[kind], 1.3, problem.by_sequence, problem.of_entropy)

    assert found_loss.item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(known.entropies, entropies.detach(), atol=2e-6, rtol=1e-5)
    assert_same(found, expected)


@pytest.mark.parametrize("kind", HEADS)
def test_reported_entropies_do_not_change_the_gradients(kind):
    problem = Problem()

    *_, expected = problem.chunked(HEADS[kind], 1.0, problem.by_token)
    *_, found = problem.chunked(HEADS[kind], 1.0, problem.by_token, entropies=True)

    assert_same(found, expected)


def test_log_probs_without_gradients_are_the_same(monkeypatch):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", 5 * VOCABULARY)
    problem = Problem()
    _, log_probs, entropies, _ = problem.reference(OutputHead(), 1.0, problem.by_token)
    projection = HeadProjection(OutputHead(), problem.weight, None, dtype=torch.float32, temperature=1.0)

    known = head_log_probs(projection, problem.hidden, problem.targets, entropies=True)

    torch.testing.assert_close(known.log_probs, log_probs.detach(), atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(known.entropies, entropies.detach(), atol=2e-6, rtol=1e-5)


def test_every_sequence_is_weighed_once_and_in_order(monkeypatch):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", 4 * VOCABULARY)
    problem, calls = Problem(), []

    def weigh(first, after, log_probs):
        calls.append((first, after, log_probs.numel()))
        return problem.by_token(first, after, log_probs)

    problem.chunked(OutputHead(), 1.0, weigh)

    # Four tokens at a time: 3 + 1, the long one in pieces, 2.
    assert calls == [(0, 2, 4), (2, 3, 6), (3, 4, 2)]


def test_a_long_sequence_of_one_weight_is_projected_once(monkeypatch):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", 4 * VOCABULARY)
    visits = []
    visit = HeadProjection.visit

    def counted(self, hidden, token_ids, **options):
        visits.append(len(token_ids))
        return visit(self, hidden, token_ids, **options)

    monkeypatch.setattr(HeadProjection, "visit", counted)
    problem = Problem()

    problem.chunked(OutputHead(), 1.0, problem.by_sequence)
    once = list(visits)
    visits.clear()
    problem.chunked(OutputHead(), 1.0, problem.by_token)

    assert once == [4, 4, 2, 2]
    assert visits == [4, 4, 2, 4, 2, 2]


def test_gradients_are_added_to_what_is_there_already():
    problem = Problem(bias=True)
    *_, (_, of_weight, of_bias) = problem.reference(OutputHead(), 1.0, problem.by_token)
    hidden, weight, bias = problem.leaves()
    weight.grad, bias.grad = torch.ones_like(weight), torch.full_like(bias, 2.0)
    there = weight.grad
    projection = HeadProjection(OutputHead(), weight, bias, dtype=torch.float32, temperature=1.0)

    loss, _ = head_loss(projection, hidden, weight, bias, problem.targets, problem.by_token, accumulate=True)
    loss.backward()

    assert weight.grad is there
    assert_same((weight.grad, bias.grad), (of_weight + 1, of_bias + 2))


def test_a_loss_that_was_added_at_once_cannot_be_multiplied():
    problem = Problem()
    hidden, weight = problem.leaves()
    weight.grad = torch.zeros_like(weight)
    projection = HeadProjection(OutputHead(), weight, None, dtype=torch.float32, temperature=1.0)
    loss, _ = head_loss(projection, hidden, weight, None, problem.targets, problem.by_token, accumulate=True)

    with pytest.raises(ValueError, match="cannot be multiplied"):
        (2 * loss).backward()


def test_a_factor_on_the_loss_reaches_every_gradient():
    problem = Problem()
    *_, expected = problem.reference(OutputHead(), 1.0, problem.by_token)
    hidden, weight = leaves = problem.leaves()
    projection = HeadProjection(OutputHead(), weight, None, dtype=torch.float32, temperature=1.0)
    loss, _ = head_loss(projection, hidden, weight, None, problem.targets, problem.by_token)

    found = torch.autograd.grad(-3 * loss, leaves)

    assert_same(found, [-3 * gradient for gradient in expected])


def test_a_token_out_of_the_loss_may_be_impossible():
    # Token 1 has probability 0 in float32; with weight 0 it adds nothing.
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [-1e4]], requires_grad=True)
    projection = HeadProjection(OutputHead(), weight, None, dtype=torch.float32, temperature=1.0)
    targets = HeadTargets(torch.tensor([0, 0]), torch.tensor([1, 0]), (2,))

    loss, known = head_loss(projection, hidden, weight, None, targets, lambda *_: torch.tensor([0.0, -1.0]))
    loss.backward()

    assert known.log_probs.tolist() == [-1e4, 0.0]
    assert loss.item() == 0.0
    assert hidden.grad.item() == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_products_stay_near(dtype):
    problem = Problem()
    _, log_probs, _, expected = problem.reference(OutputHead(), 1.0, problem.by_token)
    hidden, weight = leaves = problem.leaves()
    projection = HeadProjection(OutputHead(), weight, None, dtype=dtype, temperature=1.0)

    loss, known = head_loss(projection, hidden, weight, None, problem.targets, problem.by_token)

    torch.testing.assert_close(known.log_probs, log_probs.detach(), atol=0.1, rtol=0)
    for found, exact in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        assert found.dtype == torch.float32
        assert (found - exact).norm() < 0.03 * exact.norm()


def test_chunks_are_runs_of_whole_sequences():
    targets = HeadTargets(torch.arange(12), torch.arange(12), (3, 1, 6, 2))

    assert list(targets.chunks(4)) == [(0, 2, slice(0, 4)), (2, 3, slice(4, 10)), (3, 4, slice(10, 12))]
    assert list(targets.chunks(100)) == [(0, 4, slice(0, 12))]
    assert list(HeadTargets(torch.arange(0), torch.arange(0), ()).chunks(4)) == []


def test_the_first_long_sequence_needs_no_second_matrix_of_the_heads_size(monkeypatch):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", 2 * VOCABULARY)
    monkeypatch.setattr(head_chunks.HeadSums, "zeros", lambda _: pytest.fail("another matrix was made"))
    problem = Problem()
    # Nothing before the third sequence weighs anything, and the last fits into a chunk.
    problem.factors = torch.tensor([0.0, 0.0, 1.5, -0.5])
    *_, expected = problem.reference(OutputHead(), 1.0, problem.by_sequence)

    *_, found = problem.chunked(OutputHead(), 1.0, problem.by_sequence)

    assert_same(found, expected)


@pytest.mark.parametrize("weighing", ["by_sequence", "by_token"])
def test_a_head_that_is_not_trained_gets_no_gradient_and_the_hidden_states_the_same(monkeypatch, weighing):
    monkeypatch.setitem(head_chunks.CHUNK_ELEMENTS, "cpu", 4 * VOCABULARY)
    monkeypatch.setattr(
        HeadProjection, "sums", lambda _: pytest.fail("room for the head's gradient was taken")
    )
    problem = Problem(bias=True)
    weigh = getattr(problem, weighing)
    *_, (expected, *_) = problem.reference(OutputHead(), 1.0, weigh)
    hidden = problem.hidden.clone().requires_grad_()
    projection = HeadProjection(
        OutputHead(), problem.weight, problem.bias, dtype=torch.float32, temperature=1.0
    )

    loss, _ = head_loss(projection, hidden, problem.weight, problem.bias, problem.targets, weigh)
    loss.backward()

    assert_same([hidden.grad], [expected])
