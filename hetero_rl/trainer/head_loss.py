"""Log-probabilities, entropies and the gradients of a loss on them, without the logits of more than a few tokens.

    hidden ──► chunk of whole sequences ──► log-probs ──► weights (d loss / d log p) ──► gradients of the same chunk

A weight may need all log-probabilities of its sequence (a sequence-level coefficient), so a chunk holds whole sequences
where they fit. A longer sequence is visited in pieces: its gradients are formed with weights of 1 and scaled at its
end, if one number scales all its tokens; otherwise its pieces are projected a second time. Scaling at the end takes 0.7
of the time of projecting twice. The first long sequence is summed where the sum of all will be; when there is something
already, one more matrix of the head's size holds it until its end. A head that is not trained needs neither.

Shapes: M hidden states of width D, V vocabulary, N tokens of S sequences.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hetero_rl.trainer.head_chunks import HeadProjection, HeadSums

__all__ = ["HeadTargets", "TokenStatistics", "TokenWeigher", "head_log_probs", "head_loss"]

TokenWeigher = Callable[[int, int, Tensor], Tensor]
"""(first sequence, sequence after the last, log-probabilities of their tokens) -> d loss / d log-probability of each."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HeadTargets:
    """Which tokens are predicted from which hidden states."""

    rows: Tensor
    """[N] int64, in [0, M): the hidden state that predicts each token."""
    token_ids: Tensor
    """[N] int64, in [0, V)."""
    lengths: tuple[int, ...]
    """S, tokens of each sequence; they add up to N."""

    def to(self, device: torch.device) -> "HeadTargets":
        """The same on another device."""
        return HeadTargets(self.rows.to(device), self.token_ids.to(device), self.lengths)

    def chunks(self, tokens_at_once: int) -> Iterator[tuple[int, int, slice]]:
        """First sequence, sequence after the last, and tokens of each run of sequences; a longer sequence is alone."""
        first, start, end = 0, 0, 0
        for index, length in enumerate(self.lengths):
            if index > first and end + length - start > tokens_at_once:
                yield first, index, slice(start, end)
                first, start = index, end
            end += length
        if self.lengths:
            yield first, len(self.lengths), slice(start, end)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TokenStatistics:
    """What the head said of each token. Detached."""

    log_probs: Tensor
    """[N] float32, natural."""
    entropies: Tensor | None
    """[N] float32, in nats; None where they were not asked for."""


def head_log_probs(
    projection: HeadProjection, hidden: Tensor, targets: HeadTargets, *, entropies: bool = False
) -> TokenStatistics:
    """Log-probabilities of the targets under hidden states [M, D], and entropies if wanted; no gradients."""
    visitor = _Visitor(projection, hidden.detach(), targets, entropies=entropies)
    for _ in visitor.pieces(slice(0, targets.token_ids.numel())):
        pass
    return visitor.statistics


def head_loss(
    projection: HeadProjection,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: HeadTargets,
    weigh: TokenWeigher,
    *,
    entropy_weights: Tensor | None = None,
    entropies: bool = False,
    accumulate: bool = False,
) -> tuple[Tensor, TokenStatistics]:
    """The loss and what it was made from; `backward` on the loss hands out gradients that exist already.

    Args:
        projection: Over `weight` and `bias`.
        hidden: [M, D], with or without gradients.
        weight: [V, D] of the head.
        bias: [V] or None.
        targets: What is predicted.
        weigh: Called once for each run of sequences, in order, as their log-probabilities become known.
        entropy_weights: d loss / d entropy of each token [N]; None for a loss without entropies.
        entropies: Whether entropies are reported; a loss on them reports them anyway.
        accumulate: Whether the head's gradients are added to `weight.grad` and `bias.grad` at once, where they exist,
            in place of another matrix of the head's size. `backward` must then be called without a factor.

    Returns:
        sum(w log p) + sum(e H), a scalar, and the statistics of the tokens.
    """
    statistics = TokenStatistics(torch.empty(0), None)

    def keep(found: TokenStatistics) -> None:
        nonlocal statistics
        statistics = found

    def work(sums: HeadSums | None, *, empty: bool) -> tuple[Tensor, Tensor]:
        visitor = _Visitor(
            projection, hidden.detach(), targets, entropies=entropies or entropy_weights is not None
        )
        found = _gradients(visitor, sums, weigh, entropy_weights, empty=empty)
        keep(visitor.statistics)
        return found

    loss: Tensor = _HeadLoss.apply(hidden, weight, bias, projection, work, accumulate)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return loss, statistics


class _HeadLoss(torch.autograd.Function):
    """Runs forward and keeps the gradients until backward asks for them."""

    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        projection: HeadProjection,
        work: Callable[..., tuple[Tensor, Tensor]],
        accumulate: bool,
    ) -> Tensor:
        trained = any(context.needs_input_grad[1:3])
        direct = accumulate and weight.grad is not None and (bias is None or bias.grad is not None)
        sums = None
        if direct and weight.grad is not None:
            sums = HeadSums(weight.grad, None if bias is None else bias.grad)
        elif trained:
            sums = projection.sums()
        loss, gradient = work(sums, empty=not direct)
        context.direct = direct
        of_head = (None, None) if sums is None else (sums.weight, sums.bias)
        context.gradients = (gradient.to(hidden.dtype), *of_head)
        context.types = (weight.dtype, None if bias is None else bias.dtype)
        return loss

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = gradients
        hidden, weight, bias = context.gradients
        context.gradients = None
        scaled = float(factor) != 1
        if context.direct:
            if scaled:
                raise ValueError(
                    "a head loss that adds to the gradients at once cannot be multiplied afterwards"
                )
            return hidden, None, None, None, None, None
        if scaled:
            for gradient in (hidden, weight, bias):
                if gradient is not None:
                    gradient.mul_(factor)
        of_head = tuple(
            None if gradient is None else gradient.to(kind)
            for gradient, kind in zip((weight, bias), context.types, strict=True)
        )
        return hidden, *of_head, None, None, None


class _Visitor:
    """Visits pieces of a micro-batch and records what is known of their tokens."""

    def __init__(
        self, projection: HeadProjection, hidden: Tensor, targets: HeadTargets, *, entropies: bool
    ) -> None:
        self.projection = projection
        self.hidden = hidden
        self.targets = targets
        empty = torch.empty(targets.token_ids.numel(), dtype=torch.float32, device=hidden.device)
        self.statistics = TokenStatistics(empty, torch.empty_like(empty) if entropies else None)

    def pieces(self, tokens: slice) -> "Iterator[tuple[slice, Any]]":
        """Tokens and chunk of each piece; a chunk lasts until the next one."""
        size = self.projection.tokens_at_once
        for start in range(tokens.start, tokens.stop, size):
            part = slice(start, min(start + size, tokens.stop))
            known = self.statistics
            chunk = self.projection.visit(
                self.hidden[self.targets.rows[part]],
                self.targets.token_ids[part],
                entropies=known.entropies is not None,
            )
            known.log_probs[part] = chunk.log_probs
            if known.entropies is not None and chunk.entropies is not None:
                known.entropies[part] = chunk.entropies
            yield part, chunk


def _gradients(
    visitor: _Visitor,
    sums: HeadSums | None,
    weigh: TokenWeigher,
    entropy_weights: Tensor | None,
    *,
    empty: bool,
) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of the hidden states [M, D] float32; adds those of the head to `sums`, `empty` or not."""
    projection, targets, known = visitor.projection, visitor.targets, visitor.statistics
    result = torch.zeros(visitor.hidden.shape, dtype=torch.float32, device=visitor.hidden.device)
    weights = torch.zeros_like(known.log_probs)
    long = _LongSequences(visitor, sums, empty=empty)
    for first, after, tokens in targets.chunks(projection.tokens_at_once):
        of_entropy = None if entropy_weights is None else entropy_weights[tokens]
        if tokens.stop - tokens.start > projection.tokens_at_once:
            weights[tokens] = long.add(result, first, tokens, weigh, of_entropy)
            continue
        ((_, chunk),) = visitor.pieces(tokens)
        weights[tokens] = weigh(first, after, known.log_probs[tokens])
        # Without an advantage there is nothing to add.
        if of_entropy is not None or bool(weights[tokens].any()):
            gradient = projection.add_gradients(sums, chunk, weights[tokens], of_entropy)
            long.empty = False
            # The last token of a shared prompt predicts the first token of several completions.
            result.index_add_(0, targets.rows[tokens], gradient)
    # A token out of the loss may have log p = -inf; 0 * -inf is not 0.
    loss = (weights * torch.where(weights != 0, known.log_probs, 0.0)).sum()
    if entropy_weights is not None and known.entropies is not None:
        loss += (entropy_weights * known.entropies).sum()
    return loss, result


class _LongSequences:
    """Sequences that do not fit into a chunk: scaled at their end, or projected a second time."""

    def __init__(self, visitor: _Visitor, sums: HeadSums | None, *, empty: bool) -> None:
        self._visitor = visitor
        self._sums = sums
        self._own: HeadSums | None = None
        self._one_number = True
        """Whether the last long sequence had one weight for all its tokens."""
        self.empty = empty
        """Whether nothing was added to the sums yet."""

    def add(
        self,
        result: Tensor,
        sequence: int,
        tokens: slice,
        weigh: TokenWeigher,
        entropy_weights: Tensor | None,
    ) -> Tensor:
        """Adds the gradients of one sequence; returns its weights."""
        hopeful = self._one_number and entropy_weights is None
        unscaled = self._visit_unscaled(tokens) if hopeful else None
        if not hopeful:
            self._visit(tokens)
        known = self._visitor.statistics.log_probs[tokens]
        weights = weigh(sequence, sequence + 1, known).to(known)
        self._one_number = bool((weights == weights[0]).all())
        useful = entropy_weights is not None or bool(weights.any())
        if unscaled is not None:
            self._settle(float(weights[0]) if useful and self._one_number else None)
        if not useful:
            return weights
        self.empty = False
        if unscaled is not None and self._one_number:
            result.index_add_(0, self._visitor.targets.rows[tokens], unscaled, alpha=float(weights[0]))
            return weights
        for part, chunk in self._visitor.pieces(tokens):
            own = slice(part.start - tokens.start, part.stop - tokens.start)
            of_entropy = None if entropy_weights is None else entropy_weights[own]
            gradient = self._visitor.projection.add_gradients(self._sums, chunk, weights[own], of_entropy)
            result.index_add_(0, self._visitor.targets.rows[part], gradient)
        return weights

    def _visit(self, tokens: slice) -> None:
        for _ in self._visitor.pieces(tokens):
            pass

    def _visit_unscaled(self, tokens: slice) -> Tensor:
        """Gradients of the hidden states with weights of 1 [n, D]; those of the head wait for `_settle`."""
        place = self._place()
        return torch.cat(
            [
                self._visitor.projection.add_gradients(place, chunk, torch.ones_like(chunk.log_sums))
                for _, chunk in self._visitor.pieces(tokens)
            ]
        )

    def _place(self) -> HeadSums | None:
        """Where unscaled gradients of the head are summed: in the sums themselves, as long as nothing is there."""
        if self._sums is None or self.empty:
            return self._sums
        if self._own is None:
            self._own = self._sums.zeros()
        else:
            self._own.clear()
        return self._own

    def _settle(self, factor: float | None) -> None:
        """Takes the unscaled gradients of the head times a factor; None gives them up."""
        if self._sums is None:
            return
        if self.empty and factor is None:
            self._sums.clear()
        elif self.empty and factor is not None:
            self._sums.scale(factor)
        elif factor is not None and self._own is not None:
            self._sums.add(self._own, factor)
