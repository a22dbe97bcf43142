"""The installed vLLM under the contract suite: engines that stay up between tests, since a start takes long."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hetero_rl.worker.engines.vllm import VllmEngine

# The smallest head that vLLM's attention on the CPU has a kernel for.
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
MODELS = {
    "dense": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
    "tied": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": True}),
    "moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"tie_word_embeddings": False, **EXPERTS}),
}
USUAL = 512
"""`max_concurrent_sequences` of most tests; engines with another number are started for one model only."""


def make_model(kind, model_dir, common):
    """Writes the configuration and returns the module."""
    config_class, model_class, own = MODELS[kind]
    config = config_class(**{**common, **SIZES, **own})
    config.save_pretrained(model_dir)
    return model_class(config)


def random_state(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        (name, 0.15 * torch.randn(parameter.shape, generator=generator) + (1.0 if "norm" in name else 0.0))
        for name, parameter in model.named_parameters()
    ]


class SharedEngine:
    """A running engine as a test sees it: without weights at first, counters at 0."""

    running: ClassVar[dict[tuple, VllmEngine]] = {}

    def __init__(self, settings, kind):
        self._settings, self._kind = settings, kind
        self._loaded = False

    async def start(self):
        settings = self._settings
        usual = settings.max_concurrent_sequences == USUAL and not settings.drain_before_update
        if not usual and self._kind != "dense":
            pytest.skip("what a model does not change is tested with the dense one")
        key = (settings.model_dir, settings.max_concurrent_sequences, settings.drain_before_update)
        for other in [each for each in self.running if each[0] != settings.model_dir]:
            await self.running.pop(other).close()
        if key not in self.running:
            self.running[key] = VllmEngine(dataclasses.replace(settings))
            await self.running[key].start()
        self._engine = self.running[key]
        self._tokens, self._seconds = self._engine.generated_tokens, self._engine.busy_seconds

    async def load_weights(self, tensors, version):
        await self._engine.load_weights(tensors, version)
        self._loaded = True

    @property
    def loaded_version(self):
        return self._engine.loaded_version if self._loaded else 0

    @property
    def generated_tokens(self):
        return self._engine.generated_tokens - self._tokens

    @property
    def busy_seconds(self):
        return self._engine.busy_seconds - self._seconds

    async def close(self):
        """The engine stays up for the next test."""

    def __getattr__(self, name):
        return getattr(self._engine, name)
