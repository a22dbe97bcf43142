"""Names and rules of weight versions that hold a frozen base and low-rank adapters. Standard library only.

base_model.model.<module>.lora_A.weight   [rank, in]     A, under the name that peft's files have
base_model.model.<module>.lora_B.weight   [out, rank]    B
<module>.weight                           [out, in]      W, one of the base; computed is W + (alpha / rank) B A
"""

import math
from collections.abc import Iterable

from hetero_rl.errors import DamagedError
from hetero_rl.weights.digests import is_digest, state_digest
from hetero_rl.wire.messages import AdapterDescription, TensorEntry, WeightManifest

__all__ = [
    "adapter_module",
    "base_digest",
    "check_adapters",
    "check_same_adapters",
    "down_name",
    "is_adapter_name",
    "module_kinds",
    "up_name",
]

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_MOST_RANK = 2**16


def down_name(module: str) -> str:
    """Name of the A of a module."""
    return f"{_PREFIX}{module}{_DOWN}"


def up_name(module: str) -> str:
    """Name of the B of a module."""
    return f"{_PREFIX}{module}{_UP}"


def is_adapter_name(name: str) -> bool:
    """Whether a tensor of this name is part of an adapter."""
    return name.startswith(_PREFIX) and name.endswith((_DOWN, _UP))


def adapter_module(name: str) -> str:
    """The module that a part of an adapter belongs to."""
    return name.removeprefix(_PREFIX).removesuffix(_DOWN).removesuffix(_UP)


def module_kinds(modules: Iterable[str]) -> tuple[str, ...]:
    """Last parts of the names of modules, ascending, each once, as peft's `target_modules` has them."""
    return tuple(sorted({module.rpartition(".")[2] for module in modules}))


def base_digest(tensors: Iterable[TensorEntry]) -> str:
    """Digest of the tensors that are not of adapters."""
    return state_digest(entry for entry in tensors if not is_adapter_name(entry.name))


def check_adapters(manifest: WeightManifest) -> None:
    """Raises DamagedError unless a manifest's adapters are what it says of them: all parts of each, of fitting shapes."""
    adapter, version = manifest.adapter, manifest.version
    entries = {entry.name: entry for entry in manifest.tensors}
    names = [name for name in entries if is_adapter_name(name)]
    if adapter is None:
        if names:
            raise DamagedError(
                f"version {version} holds {names[0]!r} but says nothing of adapters: a hub or relay on the way is older than "
                "versions of adapters; update it"
            )
        return
    _check_description(adapter, version)
    modules = sorted(set(map(adapter_module, names)))
    for module in modules:
        _check_shapes(module, adapter.rank, entries, version)
    if not modules or adapter.target_modules != module_kinds(modules):
        raise DamagedError(
            f"version {version} says that {list(adapter.target_modules)} have adapters, {list(module_kinds(modules))} have"
        )
    if adapter.base_digest != base_digest(manifest.tensors):
        raise DamagedError(
            f"version {version} says that its base has digest {adapter.base_digest}, it is not that of its tensors"
        )


def check_same_adapters(manifest: WeightManifest, base: WeightManifest) -> None:
    """Raises DamagedError unless a delta leads to adapters of the same kind on the same frozen base."""
    if manifest.adapter != base.adapter:
        raise DamagedError(
            f"the delta to version {manifest.version} leads to adapters {manifest.adapter}, version {base.version} has "
            f"{base.adapter}"
        )


def _check_description(adapter: AdapterDescription, version: int) -> None:
    if not 1 <= adapter.rank <= _MOST_RANK or not (math.isfinite(adapter.alpha) and adapter.alpha > 0):
        raise DamagedError(
            f"version {version} has adapters of rank {adapter.rank} and alpha {adapter.alpha}; the rank lies in 1 to "
            f"{_MOST_RANK}, alpha is finite and above 0"
        )
    if not is_digest(adapter.base_digest):
        raise DamagedError(f"version {version} names no digest of its base: {adapter.base_digest!r}")


def _check_shapes(module: str, rank: int, entries: dict[str, TensorEntry], version: int) -> None:
    parts = [entries.get(name) for name in (f"{module}.weight", down_name(module), up_name(module))]
    shapes = [part.shape if part is not None else None for part in parts]
    weight = shapes[0]
    fits = weight is not None and len(weight) == 2 and shapes[1:] == [(rank, weight[1]), (weight[0], rank)]
    if not fits:
        raise DamagedError(
            f"version {version}: the adapter of {module!r} has shapes {shapes[1:]} on a weight of {weight}; a rank of {rank} "
            "needs [rank, in] and [out, rank] on [out, in]"
        )
