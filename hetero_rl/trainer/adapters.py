"""Low-rank adapters: W + (alpha / r) B A with W frozen (LoRA, Hu et al. 2021, arXiv:2106.09685, equation 3).

trained      A [r, in] and B [out, r] of each target, float32, in peft's layers
published    merged: the matrices with the adapters added under the model's own names; or the frozen model and the adapters
             under peft's names, of which later versions change the adapters alone (`trainer.lora.publish`)
stored       the merged model, and the adapters under peft's names; the frozen model is that of `model.path`
reference    the same model with B = 0: exactly the frozen one, without a second copy
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hetero_rl.config.tree import LoraConfig
from hetero_rl.errors import ConfigError
from hetero_rl.trainer.output_head import decoder_layers
from hetero_rl.trainer.policy import Policy
from hetero_rl.weights.adapter_rules import down_name, module_kinds, up_name
from hetero_rl.weights.tensors import NamedTensor, distinct_tensors, raw_bytes, serving_copy
from hetero_rl.wire.messages import AdapterDescription

__all__ = [
    "ADAPTER_FILE",
    "Adapters",
    "adapter_config",
    "add_adapters",
    "served_name",
    "without_adapters",
]

ADAPTER_FILE = "adapter_model.safetensors"
_ADAPTER = "default"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Adapters:
    """What is known of a policy that is trained through adapters."""

    targets: frozenset[str]
    """Modules that have one, by full name."""
    scale: float
    """alpha / r."""
    names: tuple[NamedTensor, ...]
    """The model's distinct tensors as they were without adapters, without their numbers."""
    twin: Policy
    """A model without numbers of its own, for snapshots: with adapters where they are published, without them otherwise."""
    base_digest: str
    """SHA-256 of the frozen model in float32."""
    description: AdapterDescription | None = None
    """What versions say of the adapters, but for the digest of their base; None where merged weights are published."""

    def merged(self, state: Mapping[str, Tensor]) -> Iterator[NamedTensor]:
        """The model's tensors with the adapters added, float32, one at a time; takes every rank's part of sharded ones.

        Args:
            state: The state of the model with adapters.
        """
        for named in self.names:
            module, _, kind = named.name.rpartition(".")
            if module not in self.targets:
                yield dataclasses.replace(named, tensor=state[named.name])
                continue
            tensor = _whole(state[f"{module}.base_layer.{kind}"])
            if kind == "weight":
                down = _whole(state[f"{module}.lora_A.{_ADAPTER}.weight"])
                up = _whole(state[f"{module}.lora_B.{_ADAPTER}.weight"])
                tensor = torch.addmm(tensor, up, down, alpha=self.scale)
            yield dataclasses.replace(named, tensor=tensor)

    def base(self, state: Mapping[str, Tensor]) -> Iterator[NamedTensor]:
        """The frozen model's tensors under its own names, sharded ones as they are."""
        for named in self.names:
            module, _, kind = named.name.rpartition(".")
            own = f"{module}.base_layer.{kind}" if module in self.targets else named.name
            yield dataclasses.replace(named, tensor=state[own])

    def tensors(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A and B of each target under the names that peft's files have, sharded ones as they are."""
        return {
            served_name(own): state[own]
            for module in sorted(self.targets)
            for own in (f"{module}.lora_A.{_ADAPTER}.weight", f"{module}.lora_B.{_ADAPTER}.weight")
        }


def served_name(name: str) -> str:
    """The name under which a parameter of a model with adapters is published and stored."""
    for part, named in ((f".lora_A.{_ADAPTER}.weight", down_name), (f".lora_B.{_ADAPTER}.weight", up_name)):
        if name.endswith(part):
            return named(name.removesuffix(part))
    return name.replace(".base_layer.", ".")


def add_adapters(policy: Policy, config: LoraConfig, *, seed: int) -> Policy:
    """Gives the linear layers of a policy's model adapters, in place, and freezes everything else.

    Args:
        policy: Whole, not sharded.
        config: Rank above 0.
        seed: Of the random A; B is 0, so the model computes what it did.

    Raises:
        ConfigError: peft is not installed, or a target names no linear layer within the decoder layers.
    """
    peft = _peft(config.rank)
    targets = _targets(policy.model, config.targets)
    state = policy.model.state_dict()
    adapters = Adapters(
        targets=frozenset(targets),
        scale=config.alpha / config.rank,
        names=tuple(
            dataclasses.replace(named, tensor=named.tensor.detach().to("meta"))
            for named in distinct_tensors(state)
        ),
        twin=policy.twin(device="meta"),
        base_digest=_digest(state),
    )
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=targets, lora_dropout=0.0, bias="none"
    )
    peft.inject_adapter_in_model(settings, policy.model, adapter_name=_ADAPTER)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if ".lora_A." in name:
            # The same on every rank and device, whatever else draws random numbers.
            drawn = torch.empty(parameter.shape)
            torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            parameter.data.copy_(drawn)
    policy.model.eval()
    if config.publish == "adapter":
        kinds = module_kinds(targets)
        adapters = dataclasses.replace(
            adapters,
            twin=policy.twin(device="meta"),
            description=AdapterDescription(
                rank=config.rank, alpha=config.alpha, target_modules=kinds, base_digest=""
            ),
        )
    return dataclasses.replace(policy, adapters=adapters)


def without_adapters(policy: Policy) -> Policy:
    """The frozen model that a policy with adapters began with: the same parameters, computed with B = 0."""
    zeros = {
        name: torch.zeros_like(parameter)
        for name, parameter in policy.named_parameters().items()
        if ".lora_B." in name
    }
    return dataclasses.replace(policy, overrides=zeros)


def adapter_config(config: LoraConfig, targets: Sequence[str], base: str) -> str:
    """The text of peft's adapter_config.json.

    Args:
        config: Rank and alpha.
        targets: Names of the adapted modules.
        base: The model that the adapters are added to.
    """
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(module_kinds(targets)),
        "inference_mode": True,
    }
    return json.dumps(fields, indent=2) + "\n"


def _peft(rank: int) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            f"trainer.lora.rank is {rank}, which needs peft; install it with: pip install 'hetero-rl[lora]'"
        ) from error
    return peft


def _targets(model: Any, wanted: Sequence[str]) -> list[str]:
    """Full names of the linear layers that get an adapter; no names want all within the decoder layers."""
    names = {id(module): name for name, module in model.named_modules()}
    inside = {
        names[id(module)]
        for layer in decoder_layers(model)
        for module in layer.modules()
        if isinstance(module, torch.nn.Linear)
    }
    known = sorted({name.rpartition(".")[2] for name in inside})
    if not wanted:
        wanted = known
    unknown = [name for name in wanted if name not in known]
    if unknown or not inside:
        raise ConfigError(
            f"trainer.lora.targets names {unknown}, which are no linear layers within the decoder layers of"
            f" {type(model).__name__}; there are {known}"
        )
    return sorted(name for name in inside if name.rpartition(".")[2] in wanted)


def _digest(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for named in distinct_tensors(state):
        digest.update(named.name.encode() + b"\0")
        if named.tensor.numel():
            digest.update(raw_bytes(serving_copy(named.tensor, torch.float32)))
    return digest.hexdigest()


def _whole(tensor: Tensor) -> Tensor:
    from hetero_rl.trainer.sharding import whole

    return whole(tensor.detach())
