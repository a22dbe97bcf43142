"""Low-rank adapters beside the linear layers of a model: W x + (alpha / rank) B (A x).

Every adapted layer gets one hook for good, which does nothing until there are factors for it; another version is another
dictionary. The products are taken in the model's data type, which is what the trainer's layers do.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hetero_rl.errors import InvalidMessageError
from hetero_rl.weights.low_rank import AdapterTensors

__all__ = ["AdaptedLayers", "LayerFactor", "LayerFactors"]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerFactor:
    """The adapter of one layer, on its device and in its data type."""

    down: Tensor
    """A [rank, in]."""
    up: Tensor
    """B [out, rank]."""
    scale: float


LayerFactors: TypeAlias = Mapping[str, LayerFactor]
"""By the name of the layer."""


class AdaptedLayers:
    """The adapters that a model computes with.

    Args:
        model: Its linear layers may have adapters.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._layers = {
            name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)
        }
        self._hooked: set[str] = set()
        self._factors: LayerFactors = {}

    def prepared(self, adapters: AdapterTensors) -> LayerFactors:
        """Copies of the factors, ready to be used.

        Raises:
            InvalidMessageError: A module is no linear layer of this model, or has other sizes.
        """
        scale = adapters.description.scale
        found = {}
        for name, factors in adapters.modules.items():
            layer = self._layers.get(name)
            if layer is None:
                raise InvalidMessageError(
                    f"module {name!r} has an adapter, but is no linear layer of this model; nothing was loaded"
                )
            shape = (factors.up.shape[0], factors.down.shape[1])
            if shape != layer.weight.shape:
                raise InvalidMessageError(
                    f"the adapter of {name!r} is for a weight of {list(shape)}, the model has {list(layer.weight.shape)}; "
                    "nothing was loaded"
                )
            down, up = (
                part.detach().to(layer.weight.device, layer.weight.dtype, copy=True)
                for part in (factors.down, factors.up)
            )
            found[name] = LayerFactor(down, up, scale)
        return found

    def use(self, factors: LayerFactors) -> None:
        """Makes the model compute with these adapters and no others."""
        for name in factors.keys() - self._hooked:
            self._layers[name].register_forward_hook(functools.partial(self._added, name))
            self._hooked.add(name)
        self._factors = factors

    def _added(self, name: str, _: torch.nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        factor = self._factors.get(name)
        if factor is None:
            return output
        narrow = torch.nn.functional.linear(inputs[0], factor.down)
        return output + torch.nn.functional.linear(narrow, factor.up) * factor.scale
