"""The loss of a micro-batch as its log-probabilities become known, and what is kept of it.

    d loss / d log pi = -coefficient A a                                          the estimator's
                      + reference_kl a (1 - exp(log pi_ref - log pi))             a penalty on KL(pi || pi_ref), k3 estimate
    d loss / d H      = -entropy_bonus a                                          a bonus on the entropy of each position

a is the aggregation weight of a token, whose denominator is that of the whole batch.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from hetero_rl.estimators import Coefficients, Estimator, PreparedBatch, token_weights
from hetero_rl.estimators.batch import token_positions
from hetero_rl.trainer.micro_batches import Rows, flat

__all__ = ["LossTerms", "Part", "Weigher", "batch_coefficients", "in_batch_order"]


@dataclasses.dataclass(frozen=True, slots=True)
class LossTerms:
    """What the loss has besides the estimator."""

    entropy_bonus: float = 0.0
    """Weight of the entropy of each position, in nats."""
    reference_kl: float = 0.0
    """Weight of the divergence from the reference policy."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one micro-batch gave."""

    loss: float
    log_probs: Tensor
    """[n]."""
    coefficients: Coefficients
    entropies: Tensor | None = None
    """[n], where there is an entropy bonus."""
    reference_log_probs: Tensor | None = None
    """[n], where there is a reference."""


class Weigher:
    """Asks the estimator for coefficients as log-probabilities of a micro-batch become known.

    Args:
        estimator: The estimator.
        part: The micro-batch.
        scale: Multiplies the loss.
        terms: What else the loss has.
        reference_log_probs: log pi_ref of each token [n] where the loss has a divergence from it.
    """

    def __init__(
        self,
        estimator: Estimator[Any],
        part: PreparedBatch,
        scale: float,
        terms: LossTerms = LossTerms(),
        reference_log_probs: Tensor | None = None,
    ) -> None:
        self._estimator = estimator
        self._part = part
        self._scale = scale
        self._terms = terms
        self.reference_log_probs = reference_log_probs
        self._found: list[Coefficients] = []
        self._tokens = 0

    def __call__(self, first: int, after: int, log_probs: Tensor) -> Tensor:
        """Derivative of the loss by the log-probability of the tokens of some sequences, the next in order."""
        known = log_probs.cpu()
        whole = first == 0 and after == self._part.sequences
        part = self._part if whole else self._part.select(range(first, after))
        coefficients = self._estimator.coefficients(part, known)
        self._found.append(coefficients)
        weights = token_weights(part, coefficients)
        tokens = slice(self._tokens, self._tokens + known.numel())
        self._tokens = tokens.stop
        if self.reference_log_probs is not None:
            pull = -torch.expm1(self.reference_log_probs[tokens] - known)
            weights += self._terms.reference_kl * part.aggregation_weights * pull
        return weights * self._scale

    @property
    def entropy_weights(self) -> Tensor | None:
        """Derivative of the loss by the entropy of each position [n]; None without a bonus."""
        if not self._terms.entropy_bonus:
            return None
        return -self._terms.entropy_bonus * self._scale * self._part.aggregation_weights.float()

    @property
    def coefficients(self) -> Coefficients:
        """Those of the whole micro-batch."""
        return Coefficients.joined(self._found)


def in_batch_order(parts: list[Tensor], plan: tuple[Rows, ...], lengths: Tensor) -> Tensor:
    """Token columns of micro-batches in the order of the batch's sequences; 0 for sequences of no micro-batch.

    Args:
        parts: Columns of the micro-batches of `plan`.
        plan: Some or all sequences.
        lengths: Tokens of each sequence of the batch [S].
    """
    order = torch.tensor([index for rows in plan for index in flat(rows)], dtype=torch.int64)
    result = torch.zeros(int(lengths.sum()), dtype=parts[0].dtype if parts else torch.float32)
    if parts:
        result[token_positions(lengths, order)] = torch.cat(parts)
    return result


def batch_coefficients(
    parts: list[Coefficients], plan: tuple[Rows, ...], lengths: Tensor, *, split: bool
) -> Coefficients:
    """The coefficients of the whole batch from those of micro-batches; 0 for sequences of no micro-batch.

    Args:
        parts: Those of the micro-batches of `plan`.
        plan: Some or all sequences.
        lengths: Tokens of each sequence of the batch [S].
        split: Whether log W is split into its parts.
    """
    order = torch.tensor([index for rows in plan for index in flat(rows)], dtype=torch.int64)

    def sequences(name: str, dtype: torch.dtype) -> Tensor:
        columns = [getattr(part, name) for part in parts]
        result = torch.zeros(lengths.numel(), dtype=columns[0].dtype if columns else dtype)
        if columns:
            result[order] = torch.cat(columns)
        return result

    return Coefficients(
        weights=in_batch_order([part.values for part in parts], plan, lengths),
        lengths=lengths,
        log_importance_ratio=sequences("log_importance_ratio", torch.float32),
        unusable_tokens=sequences("unusable_tokens", torch.int64),
        clamped=sequences("clamped", torch.bool),
        staleness_log_ratio=sequences("staleness_log_ratio", torch.float32) if split else None,
        chip_log_ratio=sequences("chip_log_ratio", torch.float32) if split else None,
    )
