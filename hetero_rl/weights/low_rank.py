"""Adapters of a weight version as tensors, and the model that they make of its base. Needs torch.

version ──take_apart──► base, adapters ──► an engine that computes W x + (alpha / rank) B (A x)
└───► merged: W + (alpha / rank) B A, from the base each time, so nothing adds up
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import torch

from hetero_rl.errors import InvalidMessageError
from hetero_rl.weights.adapter_rules import adapter_module, down_name, is_adapter_name, up_name
from hetero_rl.wire.messages import AdapterDescription, WeightManifest

__all__ = ["AdapterTensors", "Factors", "Version", "merged_tensors", "take_apart"]


class Version(Protocol):
    """A verified version: its manifest and its tensors in the order of the manifest."""

    @property
    def manifest(self) -> WeightManifest:
        """What it is."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors, tied ones once."""


@dataclasses.dataclass(frozen=True, slots=True)
class Factors:
    """The adapter of one module."""

    down: torch.Tensor
    """A [rank, in]."""
    up: torch.Tensor
    """B [out, rank]."""


@dataclasses.dataclass(frozen=True, slots=True)
class AdapterTensors:
    """The adapters of a version."""

    description: AdapterDescription
    modules: Mapping[str, Factors]
    """By the name of the module that is adapted."""


def take_apart(
    version: Version, adapter: AdapterDescription
) -> tuple[Iterator[tuple[str, torch.Tensor]], AdapterTensors]:
    """The base of a version, read as it is iterated over, and its adapters; over the version's own memory.

    Args:
        version: Its manifest was checked.
        adapter: That of the manifest.
    """
    parts = {name: tensor for name, tensor in version.tensors() if is_adapter_name(name)}
    modules = sorted(set(map(adapter_module, parts)))
    base = ((name, tensor) for name, tensor in version.tensors() if not is_adapter_name(name))
    factors = {name: Factors(parts[down_name(name)], parts[up_name(name)]) for name in modules}
    return base, AdapterTensors(adapter, factors)


def merged_tensors(
    base: Iterable[tuple[str, torch.Tensor]], adapters: AdapterTensors, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The base with the adapters added in float32, one tensor at a time, each a copy where something was added.

    Args:
        base: Names and tensors.
        adapters: What is added; scale and product are taken in float32.
        dtype: Type of what was added to; None rounds it to that of the base.

    Raises:
        InvalidMessageError: An adapter does not fit its weight, or, at the end, has none in the base.
    """
    left = {f"{module}.weight": factors for module, factors in adapters.modules.items()}
    scale = adapters.description.scale
    for name, tensor in base:
        factors = left.pop(name, None)
        if factors is None:
            yield name, tensor
            continue
        shape = (factors.up.shape[0], factors.down.shape[1])
        if shape != tensor.shape:
            raise InvalidMessageError(
                f"the adapter of {name!r} is for a weight of {list(shape)}, the base has {list(tensor.shape)}; nothing was loaded"
            )
        whole = torch.addmm(tensor.float(), factors.up.float(), factors.down.float(), alpha=scale)
        yield name, whole.to(dtype or tensor.dtype)
    if left:
        raise InvalidMessageError(
            f"adapters of {min(left)!r} have no such weight to be added to; nothing was loaded"
        )
