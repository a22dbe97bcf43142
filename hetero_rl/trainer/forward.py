"""The forward pass of a micro-batch as one module: trunk, head, and the loss where one is wanted.

One module, because whatever shards, compiles or replaces parameters does so for one call: `FSDP` gathers the root's
parameters around it, and `functional_call` computes with a snapshot's numbers in their place.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hetero_rl.trainer.head_chunks import HeadProjection
from hetero_rl.trainer.head_loss import (
    HeadTargets,
    TokenStatistics,
    TokenWeigher,
    head_log_probs,
    head_loss,
)
from hetero_rl.trainer.output_head import OutputHead, trunk_of
from hetero_rl.trainer.selected import selected_log_probs

__all__ = ["Objective", "PolicyForward", "TokenInputs"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TokenInputs:
    """Rows of tokens and what is to be predicted from them."""

    input_ids: Tensor
    """[B, L] int64."""
    layout: Mapping[str, Any]
    """What else the model is told: position ids, what is packed where. Each can be moved with `to`."""
    targets: HeadTargets
    """Rows count the B * L tokens, row after row."""

    def to(self, device: torch.device) -> "TokenInputs":
        """The same on another device."""
        layout = {name: value.to(device) for name, value in self.layout.items()}
        return TokenInputs(self.input_ids.to(device), layout, self.targets.to(device))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """A loss on log-probabilities and entropies."""

    weigh: TokenWeigher
    entropy_weights: Tensor | None = None
    """d loss / d entropy of each token [N]."""
    entropies: bool = False
    """Whether entropies are reported."""
    accumulate: bool = False
    """Whether gradients of the head go to `grad` at once."""


class PolicyForward(torch.nn.Module):
    """Log-probabilities of the targets, and a loss on them.

    Args:
        model: A Hugging Face causal language model.
        head: Its output head; None lets the model make logits.
        head_dtype: Type of the head's products.
    """

    def __init__(
        self, model: Any, head: OutputHead | None, *, head_dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self._head_dtype = head_dtype

    def forward(
        self,
        inputs: TokenInputs,
        temperature: float,
        objective: Objective | None = None,
        *,
        entropies: bool = False,
    ) -> tuple[Tensor | None, TokenStatistics]:
        """The loss, when there is an objective, and what is known of each token.

        Args:
            inputs: On the device of the model.
            temperature: The sampling temperature.
            objective: The loss; None computes log-probabilities without gradients.
            entropies: Whether entropies are computed where there is no objective.
        """
        if self.head is None:
            return self._from_logits(inputs, temperature, objective, entropies=entropies)
        output = trunk_of(self.model)(input_ids=inputs.input_ids, use_cache=False, **inputs.layout)
        hidden = output.last_hidden_state.flatten(0, 1)
        layer = self.model.get_output_embeddings()
        weight, bias = layer.weight, getattr(layer, "bias", None)
        with torch.autocast(hidden.device.type, enabled=False):
            projection = HeadProjection(
                self.head,
                weight,
                bias,
                dtype=self._head_dtype,
                temperature=temperature,
            )
            if objective is None:
                with torch.no_grad():
                    return None, head_log_probs(projection, hidden, inputs.targets, entropies=entropies)
            return head_loss(
                projection,
                hidden,
                weight,
                bias,
                inputs.targets,
                objective.weigh,
                entropy_weights=objective.entropy_weights,
                entropies=objective.entropies,
                accumulate=objective.accumulate,
            )

    def _from_logits(
        self, inputs: TokenInputs, temperature: float, objective: Objective | None, *, entropies: bool
    ) -> tuple[Tensor | None, TokenStatistics]:
        targets = inputs.targets
        logits, rows = self._logits(inputs)
        log_probs = selected_log_probs(logits, rows, targets.token_ids, temperature)
        entropy = None
        if objective is not None:
            entropies = objective.entropies or objective.entropy_weights is not None
        if entropies:
            distribution = (logits[rows].float() / temperature).log_softmax(-1)
            entropy = -(distribution.exp() * distribution).sum(-1)
        known = TokenStatistics(log_probs.detach(), None if entropy is None else entropy.detach())
        if objective is None:
            return None, known
        weights = objective.weigh(0, len(targets.lengths), known.log_probs).to(log_probs)
        # A token out of the loss may have log p = -inf; 0 * -inf is not 0.
        loss = (weights * torch.where(weights != 0, log_probs, 0.0)).sum()
        if objective.entropy_weights is not None and entropy is not None:
            loss += (objective.entropy_weights * entropy).sum()
        return loss, known

    def _logits(self, inputs: TokenInputs) -> tuple[Tensor, Tensor]:
        """Logits [M, V] of the positions from the first that predicts something, and the targets' rows in them."""
        width = inputs.input_ids.shape[1]
        row, position = inputs.targets.rows // width, inputs.targets.rows % width
        first = int(position.min())
        kept = width - first
        output = self.model(input_ids=inputs.input_ids, use_cache=False, logits_to_keep=kept, **inputs.layout)
        # A model that does not know `logits_to_keep` gives the logits of every position.
        return output.logits[:, -kept:].flatten(0, 1), row * kept + position - first
