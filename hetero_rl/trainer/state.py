"""What of the trainer goes into a checkpoint, and back out of it."""

import hashlib
import importlib.metadata
import platform
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hetero_rl
from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, DamagedError, ProtocolError
from hetero_rl.trainer.adapters import ADAPTER_FILE
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.sharding import policy_tensors, whole
from hetero_rl.trainer.shards import StoredTensors, fill

__all__ = [
    "ConsumedGroups",
    "capture_random_states",
    "capture_tensors",
    "config_digest",
    "library_versions",
    "restore_random_states",
    "restore_tensors",
]

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


class ConsumedGroups:
    """The watermark: which training groups changed the weights in which step.

    Args:
        ranges: Ordinals by step, as ranges of first and last.
    """

    def __init__(self, ranges: Mapping[int, tuple[tuple[int, int], ...]] | None = None) -> None:
        self._ranges = dict(ranges or {})
        self._claimed: dict[int, tuple[tuple[int, int], ...]] = {}
        self._ordinals = {
            ordinal
            for parts in self._ranges.values()
            for first, last in parts
            for ordinal in range(first, last + 1)
        }

    @property
    def ranges(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Ordinals by step, as ranges of first and last."""
        return dict(self._ranges)

    def claim(self, step: int, ordinals: Iterable[int]) -> None:
        """Takes the groups of a batch for a step; raises ProtocolError when one was taken before.

        A group must not change the weights twice, whatever the hub says.
        """
        chosen = sorted(ordinals)
        repeated = [ordinal for ordinal in chosen if ordinal in self._ordinals]
        if repeated or len(set(chosen)) < len(chosen):
            raise ProtocolError(
                f"the hub handed out training groups {(repeated or chosen)[:5]} again for step {step}; the weights"
                " hold them already or are about to"
            )
        self._ordinals.update(chosen)
        self._claimed[step] = tuple(_ranges(chosen))

    def commit(self, step: int) -> None:
        """Records that the groups claimed for a step are in the weights."""
        self._ranges[step] = self._claimed.pop(step)


def _ranges(ordinals: list[int]) -> Iterable[tuple[int, int]]:
    first = previous = None
    for ordinal in ordinals:
        if first is None or previous is None:
            first = ordinal
        elif ordinal != previous + 1:
            yield first, previous
            first = ordinal
        previous = ordinal
    if first is not None and previous is not None:
        yield first, previous


def capture_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """Model, adapters and optimizer as safetensors content, by file name; what is whole already is not copied."""
    if policy.sharded is not None:
        policy.sharded.ranks.command("state")
    return gather_state(policy, optimizer)


def gather_state(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
    """What `capture_tensors` gives; every rank of a sharded policy takes part, rank 0 keeps it."""

    def kept(tensor: Tensor) -> Tensor:
        found = whole(tensor.detach())
        if policy.sharded is None:
            return found
        return found.cpu() if policy.sharded.ranks.rank == 0 else torch.empty(0)

    model = {named.name: kept(named.tensor) for named in policy_tensors(policy)}
    moments = {
        f"{name}.{kind}": kept(value)
        for name, parameter in policy.named_parameters().items()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }
    files = {MODEL_FILE: model, OPTIMIZER_FILE: moments}
    if policy.adapters is not None:
        own = policy.adapters.tensors(policy.model.state_dict())
        files[ADAPTER_FILE] = {name: kept(tensor) for name, tensor in own.items()}
    return files


def restore_tensors(directory: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Loads a checkpoint's tensors, of either layout and any number of ranks, into the policy and its optimizer.

    Raises:
        ConfigError: The checkpoint has adapters and the policy has none, or the reverse.
        DamagedError: Names or shapes differ.
    """
    adapted = (directory / ADAPTER_FILE).is_file()
    if adapted != (policy.adapters is not None):
        has = "holds adapters" if adapted else "holds no adapters"
        raise ConfigError(
            f"checkpoint {directory} {has}: continue with the trainer.lora.rank that it was made with"
        )
    if policy.adapters is None:
        own, kind = {named.name: named.tensor for named in policy_tensors(policy)}, "model"
    else:
        own, kind = (
            policy.adapters.tensors(policy.model.state_dict()),
            ADAPTER_FILE.removesuffix(".safetensors"),
        )
    with StoredTensors(directory, kind) as stored, torch.no_grad():
        _check_same(directory / f"{kind}.safetensors", stored, own)
        for name, tensor in own.items():
            fill(tensor, stored, name)
    with StoredTensors(directory, "optimizer") as stored:
        for name, parameter in policy.named_parameters().items():
            if state := _moments(stored, name, parameter):
                optimizer.state[parameter] = state


def _check_same(file: Path, stored: StoredTensors, own: Mapping[str, Tensor]) -> None:
    if stored.names != own.keys():
        difference = sorted(stored.names ^ own.keys())
        raise DamagedError(f"{file} is of another model: {difference[:3]} differ")
    for name, tensor in own.items():
        if tensor.shape != stored.shape(name):
            raise DamagedError(
                f"{file} is of another model: {name} is {stored.shape(name)}, not {tuple(tensor.shape)}"
            )


def _moments(stored: StoredTensors, name: str, parameter: Tensor) -> dict[str, Tensor]:
    """The optimizer's state of a parameter, as the optimizer holds it: where and in the parts that its parameter is."""
    found: dict[str, Tensor] = {}
    for kind in ("step", "exp_avg", "exp_avg_sq"):
        if f"{name}.{kind}" not in stored.names:
            continue
        if kind == "step":
            found[kind] = stored.whole(f"{name}.{kind}")
            continue
        found[kind] = torch.zeros_like(parameter, requires_grad=False)
        fill(found[kind], stored, f"{name}.{kind}")
    return found


def capture_random_states() -> dict[str, Any]:
    """States of Python's and torch's generators as JSON."""
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
    }
    if torch.cuda.is_available():
        states["cuda"] = [bytes(state.tolist()).hex() for state in torch.cuda.get_rng_state_all()]
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Puts back what `capture_random_states` gave."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(_byte_tensor(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_byte_tensor(state) for state in states["cuda"]])


def config_digest(config: Config) -> str:
    """SHA-256 of the resolved configuration."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()


def library_versions() -> dict[str, str]:
    """Versions of what changes numbers."""
    names = ("torch", "transformers", "safetensors", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"hetero-rl": hetero_rl.__version__, "python": platform.python_version(), **found}


def _byte_tensor(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
