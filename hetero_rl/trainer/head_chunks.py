"""One chunk of tokens at the output head: projected once, its gradients formed in the same visit.

For token t with hidden state h, head row W_y of the sampled token and weight w_t = d loss / d log p_t:

    logits = h W^T               log p_t = logits[y] - logsumexp(logits)
    d loss / d h = w_t (W_y - p W)            d loss / d W = w_t (one_hot(y) - p) h^T

The chunk holds E = exp(logits - max) in place of the logits. Its rows are never scaled: the normaliser and w_t go into
the thin side of each product, w_t / sum(E_t) * (E_t W) and E^T (w_t / sum(E_t) * h_t). So a chunk is read three times by
matrix products and once by everything else, in blocks that stay in a processor's cache.

Entropies H_t and a loss on them need no second chunk: d H / d logit_v = -p_v (log p_v + H), and log p_v is in E.

Shapes: width D, V vocabulary, c tokens of a chunk.
"""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from hetero_rl.trainer.output_head import OutputHead

__all__ = ["Chunk", "HeadProjection", "HeadSums"]

CHUNK_ELEMENTS = {"cpu": 2**24}
"""Logits held at a time by device type: 64 MiB in float32."""
CHUNK_ELEMENTS_ELSEWHERE = 2**27
BLOCK_ELEMENTS = 2**21
"""Logits that one round of elementwise operations treats on a processor: what its cache holds."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """E and the statistics of its rows, float32. E is in a buffer that the next chunk uses again."""

    exponentials: Tensor
    """[c, V] exp(logits - max)."""
    inputs: Tensor
    """[c, D] what was projected: hidden states times the head's constant factor."""
    token_ids: Tensor
    """[c] the chosen tokens."""
    log_sums: Tensor
    """[c] log of the sums of E's rows."""
    picked: Tensor
    """[c] logit of the chosen token minus the row's maximum."""
    maxima: Tensor
    """[c]."""
    entropies: Tensor | None
    """[c] in nats, where they were asked for."""

    @property
    def log_probs(self) -> Tensor:
        """[c] log-probabilities of the chosen tokens."""
        return self.picked - self.log_sums


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HeadSums:
    """Gradients of the head that chunks add to, float32."""

    weight: Tensor
    """[V, D]."""
    bias: Tensor | None
    """[V]."""

    def zeros(self) -> "HeadSums":
        """Another pair of sums, empty."""
        return HeadSums(
            torch.zeros_like(self.weight), None if self.bias is None else torch.zeros_like(self.bias)
        )

    def clear(self) -> None:
        """Begins again."""
        self.weight.zero_()
        if self.bias is not None:
            self.bias.zero_()

    def scale(self, factor: float) -> None:
        """Multiplies what is there."""
        self.weight.mul_(factor)
        if self.bias is not None:
            self.bias.mul_(factor)

    def add(self, other: "HeadSums", factor: float) -> None:
        """Adds another pair times a factor."""
        self.weight.add_(other.weight, alpha=factor)
        if self.bias is not None and other.bias is not None:
            self.bias.add_(other.bias, alpha=factor)


class HeadProjection:
    """The head of one forward pass.

    Args:
        head: How logits come about.
        weight: [V, D], any float type.
        bias: [V] or None.
        dtype: Type of the factors of each product; sums are float32.
        temperature: Divides the logits, above 0.
    """

    def __init__(
        self, head: OutputHead, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype, temperature: float
    ) -> None:
        self._weight = weight.detach().to(dtype)
        self._cap = head.soft_cap
        # Without a cap every factor is in the projection; with one, the temperature comes after it.
        self._factor = head.scale / temperature if self._cap is None else head.scale
        self._after = 1.0 if self._cap is None else 1 / temperature
        self._bias = None if bias is None else bias.detach().float() * self._factor
        kind, vocabulary = weight.device.type, weight.shape[0]
        self.tokens_at_once = max(1, CHUNK_ELEMENTS.get(kind, CHUNK_ELEMENTS_ELSEWHERE) // vocabulary)
        self._block_rows = max(1, BLOCK_ELEMENTS // vocabulary) if kind == "cpu" else self.tokens_at_once
        self._buffer: Tensor | None = None

    def sums(self) -> HeadSums:
        """Empty sums."""
        weight = torch.zeros(self._weight.shape, dtype=torch.float32, device=self._weight.device)
        return HeadSums(weight, None if self._bias is None else torch.zeros_like(self._bias))

    def visit(self, hidden: Tensor, token_ids: Tensor, *, entropies: bool = False) -> Chunk:
        """Projects hidden states [c, D] and takes the statistics of the chosen tokens [c]."""
        inputs = hidden * self._factor
        logits = self._project(inputs.to(self._weight.dtype))
        count = logits.shape[0]
        maxima, sums, picked = (logits.new_empty(count) for _ in range(3))
        products = logits.new_empty(count) if entropies else None
        for rows in self._blocks(count):
            block = logits[rows]
            if self._cap is not None:
                block.div_(self._cap).tanh_().mul_(self._cap * self._after)
            maxima[rows] = block.amax(-1)
            block.sub_(maxima[rows, None])
            picked[rows] = block.gather(-1, token_ids[rows, None])[:, 0]
            block.exp_()
            sums[rows] = block.sum(-1)
            if products is not None:
                products[rows] = torch.xlogy(block, block).sum(-1)
        found = None if products is None else sums.log() - products / sums
        return Chunk(logits, inputs, token_ids, sums.log(), picked, maxima, found)

    def add_gradients(
        self, sums: HeadSums | None, chunk: Chunk, weights: Tensor, entropy_weights: Tensor | None = None
    ) -> Tensor:
        """Adds the head's gradients of a chunk, which is spent then; returns those of its hidden states [c, D].

        Args:
            sums: What is added to; None for a head that is not trained.
            chunk: Of the last visit.
            weights: d loss / d log-probability of each token [c].
            entropy_weights: d loss / d entropy of each token [c]; the chunk then has entropies.
        """
        wide = chunk.exponentials
        chosen = weights * self._after
        if entropy_weights is None:
            scale = -chosen * (-chunk.log_sums).exp()
            if self._cap is not None:
                self._bend(chunk)
        else:
            self._bend_towards_entropy(chunk, weights, entropy_weights)
            scale = torch.ones_like(weights)
        if self._cap is not None:
            bounded = (chunk.picked + chunk.maxima) / (self._cap * self._after)
            chosen *= 1 - bounded.square()
        if sums is not None:
            self._add_to_head(sums, chunk, scale, chosen)
        gradient = (wide.to(self._weight.dtype) @ self._weight).float().mul_(scale[:, None])
        gradient.add_(self._weight[chunk.token_ids].float() * chosen[:, None])
        return gradient.mul_(self._factor)

    def _add_to_head(self, sums: HeadSums, chunk: Chunk, scale: Tensor, chosen: Tensor) -> None:
        """Adds the gradients of weight and bias: those of all tokens times `scale`, those of the chosen ones [c]."""
        inputs, wide = chunk.inputs.float(), chunk.exponentials
        self._add_product(sums.weight, wide, inputs * scale[:, None])
        sums.weight.index_add_(0, chunk.token_ids, inputs * chosen[:, None])
        if sums.bias is not None:
            sums.bias.add_(wide.T @ scale, alpha=self._factor)
            sums.bias.index_add_(0, chunk.token_ids, chosen * self._factor)

    def _project(self, inputs: Tensor) -> Tensor:
        """Logits [c, V] in float32, in the buffer that every chunk uses again."""
        count = inputs.shape[0]
        if self._buffer is None or self._buffer.shape[0] < count:
            self._buffer = None
            self._buffer = inputs.new_empty((count, self._weight.shape[0]), dtype=torch.float32)
        logits = self._buffer[:count]
        if inputs.dtype == torch.float32:
            torch.mm(inputs, self._weight.T, out=logits)
        else:
            logits.copy_(inputs @ self._weight.T)
        return logits if self._bias is None else logits.add_(self._bias)

    def _add_product(self, total: Tensor, wide: Tensor, thin: Tensor) -> None:
        """Adds wide^T thin to a sum [V, D]."""
        dtype = self._weight.dtype
        if dtype == torch.float32:
            total.addmm_(wide.T, thin)
            return
        # Lifted by its largest number, so that the half-precision product keeps the small ones.
        lift = thin.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
        total.add_((wide.to(dtype).T @ (thin / lift).to(dtype)).float().mul_(lift))

    def _bend(self, chunk: Chunk) -> None:
        """Multiplies E by the slope of the soft cap."""
        for rows in self._blocks(chunk.token_ids.numel()):
            block = chunk.exponentials[rows]
            block.mul_(self._slope(block, chunk.maxima[rows]))

    def _bend_towards_entropy(self, chunk: Chunk, weights: Tensor, entropy_weights: Tensor) -> None:
        """Turns E into the gradient by the projection's output, except for the chosen tokens' part.

        With p = E / s: -w p - e p (log p + H) = E (e (log s - H) - w) / s - (e / s) E log E.
        """
        if chunk.entropies is None:
            raise ValueError("entropy_weights are given, but the chunk was visited without entropies")
        over = (-chunk.log_sums).exp() * self._after
        linear = (entropy_weights * (chunk.log_sums - chunk.entropies) - weights) * over
        curved = -entropy_weights * over
        for rows in self._blocks(linear.shape[0]):
            block = chunk.exponentials[rows]
            logarithm = torch.xlogy(block, block)
            slope = None if self._cap is None else self._slope(block, chunk.maxima[rows])
            block.mul_(linear[rows, None]).addcmul_(logarithm, curved[rows, None])
            if slope is not None:
                block.mul_(slope)

    def _slope(self, exponentials: Tensor, maxima: Tensor) -> Tensor:
        """1 - tanh^2 of each capped logit, found back from E; where E is 0 it does not matter."""
        cap = self._cap or 1.0
        tiny = torch.finfo(torch.float32).tiny
        bounded = exponentials.clamp_min(tiny).log_().add_(maxima[:, None]).div_(cap * self._after)
        return bounded.square_().neg_().add_(1)

    def _blocks(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self._block_rows):
            yield slice(start, min(start + self._block_rows, count))
