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
from hetero_rl.errors import DamagedError, ProtocolError
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.sharding import copy_whole, policy_tensors, whole

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
    """Model and optimizer as safetensors content, by file name; what is whole already is not copied."""
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
    return {MODEL_FILE: model, OPTIMIZER_FILE: moments}


def restore_tensors(directory: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Loads what `capture_tensors` gave into the policy and its optimizer; raises DamagedError when names differ."""
    from safetensors.torch import load_file

    model = load_file(directory / MODEL_FILE)
    own = {named.name: named.tensor for named in policy_tensors(policy)}
    if model.keys() != own.keys():
        difference = sorted(model.keys() ^ own.keys())
        raise DamagedError(f"{directory / MODEL_FILE} is of another model: {difference[:3]} differ")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != model[name].shape:
                raise DamagedError(
                    f"{directory / MODEL_FILE} is of another model: {name} is {tuple(model[name].shape)}, not"
                    f" {tuple(tensor.shape)}"
                )
            copy_whole(tensor, model[name])
    moments = load_file(directory / OPTIMIZER_FILE)
    for name, parameter in policy.named_parameters().items():
        state = {
            kind: moments[f"{name}.{kind}"]
            for kind in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}.{kind}" in moments
        }
        if state:
            optimizer.state[parameter] = {
                kind: value if kind == "step" else _like(parameter, value) for kind, value in state.items()
            }


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """A moment as the optimizer holds it: where and in the parts that its parameter is."""
    if not hasattr(parameter, "full_tensor"):
        return value.to(parameter.device)
    moment = torch.zeros_like(parameter)
    copy_whole(moment, value)
    return moment


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
