"""The output head of a model: how hidden states become logits, so that a loss needs no logits of the whole batch.

    logits = soft_cap * tanh(scale * (hidden W^T + b) / soft_cap)

with scale 1 and no soft cap for most models. Granite and Cohere scale, Gemma caps. What the configuration says is believed
only if it gives the model's own logits on a few tokens; for any other model the logits are computed by the model itself.
"""

import dataclasses
import logging
from typing import Any

import torch
from torch import Tensor

__all__ = ["OutputHead", "decoder_layers", "find_output_head", "logits_bytes", "trunk_of"]

TOLERANCE = 1e-4
"""Largest difference of a logit in float32, relative to the largest logit, that counts as equal."""
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class OutputHead:
    """What a model does between its last hidden state and its logits."""

    scale: float = 1.0
    """Multiplies the projection."""
    soft_cap: float | None = None
    """Logits lie within plus and minus this."""

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Logits [..., V] of hidden states [..., D], by the formula."""
        raw = torch.nn.functional.linear(hidden, weight, bias) * self.scale
        return raw if self.soft_cap is None else self.soft_cap * (raw / self.soft_cap).tanh()


def trunk_of(model: Any) -> Any:
    """The model without its output head: gives `last_hidden_state`."""
    return model.base_model


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The decoder layers of a model: the longest list of modules in its trunk."""
    lists = [list(part) for part in trunk_of(model).modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])


def find_output_head(model: Any, device: torch.device) -> OutputHead | None:
    """The head of a Hugging Face causal language model; None, with a warning, when its logits come about in another way."""
    head = _described_head(model.config)
    try:
        fits = _gives_the_models_logits(model, head, device)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        _LOG.debug("trying the head of %s failed: %s", type(model).__name__, error)
        fits = False
    if fits:
        return head
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    _LOG.warning(
        "the output head of %s is not known: its logits are materialised, about %.0f MiB for every 1024 completion"
        " tokens of a micro-batch; lower trainer.tokens_per_micro_batch if that does not fit",
        type(model).__name__,
        logits_bytes(1024, vocabulary) / 2**20,
    )
    return None


def logits_bytes(tokens: int, vocabulary: int) -> int:
    """Bytes that logits, their gradient and one temporary copy take in float32."""
    return 3 * 4 * tokens * vocabulary


def _described_head(config: Any) -> OutputHead:
    text = config.get_text_config()
    scale = 1.0
    if (multiplier := getattr(text, "logit_scale", None)) is not None:  # Cohere
        scale *= multiplier
    if (multiplier := getattr(text, "lm_head_multiplier", None)) is not None:  # Falcon-H1
        scale *= multiplier
    if (divisor := getattr(text, "logits_scaling", None)) is not None:  # Granite
        scale /= divisor
    return OutputHead(float(scale), getattr(text, "final_logit_softcapping", None))


def _gives_the_models_logits(model: Any, head: OutputHead, device: torch.device) -> bool:
    """Compares on fixed tokens, in float32."""
    layer = model.get_output_embeddings()
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (2, 3), generator=generator).to(device)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits.float()
        hidden = trunk_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        found = head.logits(hidden, layer.weight, getattr(layer, "bias", None)).float()
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max().clamp_min(1.0))
