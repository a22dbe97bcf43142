"""Building the model from its directory, and replacing its weights.

    a tensor of a version that is still on its way ── take ──┐
    new weights ── names and shapes right? ──────────────────┴─► spare tensors, copied while the model computes ──┐
                                                                   the pause: exchanged with ◄────────────────────┴─ the tensors that serve

On an accelerator, and beyond `SPARE_BYTES`, there are no spare tensors: the pause copies in place.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from hetero_rl.errors import EngineError, InvalidMessageError
from hetero_rl.worker.engines.transformers.experts import ExpertJoiner

__all__ = ["ATTENTION", "DATA_TYPES", "SPARE_BYTES", "NewWeights", "WeightTable", "build_model"]

DATA_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ATTENTION = "sdpa"
"""Attention implementation of transformers that the engine uses."""

SPARE_BYTES = 2 * 2**30
"""Most bytes that spare tensors take in main memory."""
_NAMES_SHOWN = 5


def build_model(model_dir: Path, dtype: str, device: str) -> tuple[PreTrainedModel, bool]:
    """The model of a Hugging Face directory, in evaluation mode, and whether its weights were there.

    Code that comes with a model is never run. Without a safetensors file the weights are random until the first
    `WeightTable.replace`.

    Raises:
        EngineError: The directory, its configuration or its weights cannot be used.
    """
    disable_progress_bar()
    if not (model_dir / "config.json").is_file():
        raise EngineError(
            f"model directory {model_dir} has no config.json; give a Hugging Face model directory"
        )
    has_weights = any(model_dir.glob("*.safetensors"))
    settings: dict[str, Any] = {
        "dtype": DATA_TYPES[dtype],
        "attn_implementation": ATTENTION,
        "trust_remote_code": False,
    }
    try:
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False, local_files_only=True)
        if has_weights:
            model = AutoModelForCausalLM.from_pretrained(
                model_dir, config=config, use_safetensors=True, local_files_only=True, **settings
            )
        else:
            model = AutoModelForCausalLM.from_config(config, **settings)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise EngineError(f"cannot load the model in {model_dir}: {error}") from error
    return model.to(device).eval().requires_grad_(requires_grad=False), has_weights


@dataclasses.dataclass(frozen=True, slots=True)
class NewWeights:
    """What replaces a model's weights, by the names of its tensors."""

    exchanged: Mapping[str, torch.Tensor]
    """Complete in memory that nobody else uses."""
    copied: Mapping[str, torch.Tensor]
    """To be copied in place."""


class WeightTable:
    """The weights of a model by their checkpoint names; tied names stand for one storage.

    Args:
        model: A model whose state dictionary has the names of its checkpoint.
        spare_bytes: Tensors are exchanged rather than copied if all of them in main memory take no more than this.
    """

    def __init__(self, model: torch.nn.Module, spare_bytes: int = SPARE_BYTES) -> None:
        self._by_name: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))
        self._experts = ExpertJoiner({name: tensor.shape for name, tensor in self._by_name.items()})
        self._storage_of: dict[str, int] = {name: tensor.data_ptr() for name, tensor in self._by_name.items()}
        self._holders = _exchangeable(self._by_name, spare_bytes)
        self._spare: dict[str, torch.Tensor] = {}
        self._early_version = 0
        self._early: set[str] = set()
        """Names of the spare tensors that have that version's elements already."""

    @property
    def has_spare_tensors(self) -> bool:
        """Whether any tensor is exchanged rather than copied in place."""
        return bool(self._holders)

    def begin(self, version: int) -> None:
        """See `EarlyWeights`."""
        self._early_version = version
        self._early.clear()

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """See `EarlyWeights`. Leaves to `new_weights` what it cannot copy as it is, and what is wrong with it."""
        mine = self._by_name.get(name)
        if (
            mine is None
            or name not in self._holders
            or (mine.shape, mine.dtype) != (tensor.shape, tensor.dtype)
        ):
            return
        # torch would share the copy out to threads of its own, which then wait busily beside the decoder.
        spare = self._spare_tensor(name)
        np.copyto(_bytes_of(spare), _bytes_of(tensor))
        self._spare[name] = spare
        self._early.add(name)

    def new_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int = 0) -> NewWeights:
        """Reads all tensors, compares names and shapes with the model, and copies those that will be exchanged.

        Changes nothing that the model computes with. For one thread, and for one version after the other.

        Args:
            tensors: All of a version, by name.
            version: Its number, if some may have come early; 0 copies all.

        Raises:
            InvalidMessageError: A name is missing, unknown or given twice, or a shape is wrong.
        """
        early = self._early if version and version == self._early_version else frozenset()
        exchanged, copied = {}, {}
        for name, tensor in self._checked(tensors).items():
            if name not in self._holders:
                copied[name] = tensor
            elif name in early:
                exchanged[name] = self._spare_tensor(name)
            else:
                exchanged[name] = self._spare_tensor(name).copy_(tensor)
        self.begin(0)
        return NewWeights(exchanged, copied)

    def _spare_tensor(self, name: str) -> torch.Tensor:
        """Takes out the tensor that will be exchanged for the one of that name; in new memory where there is none."""
        spare = self._spare.pop(name, None)
        return torch.empty_like(self._by_name[name]).detach() if spare is None else spare

    @torch.no_grad()
    def replace(self, new: NewWeights) -> None:
        """Makes the model compute with checked weights; what was exchanged becomes the next spare tensors."""
        for name, tensor in new.copied.items():
            self._by_name[name].copy_(tensor)
        for name, tensor in new.exchanged.items():
            self._spare[name] = self._by_name[name].data
            for holder in self._holders[name]:
                holder.data = tensor

    def _checked(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Mapping[str, torch.Tensor]:
        """The tensors under the model's names.

        Experts may come in one tensor for a layer, as transformers 5 keeps them, or one by one, as checkpoints do.
        """
        given: dict[str, torch.Tensor] = {}
        filled: dict[int, str] = {}
        for name, tensor in self._experts.joined(tensors):
            target = self._by_name.get(name)
            if target is None:
                raise InvalidMessageError(f"weight {name!r} is unknown to this model; nothing was loaded")
            if target.shape != tensor.shape:
                raise InvalidMessageError(
                    f"weight {name!r} has shape {list(tensor.shape)}, the model needs {list(target.shape)}; "
                    "nothing was loaded"
                )
            before = filled.setdefault(self._storage_of[name], name)
            if name in given or before != name:
                raise InvalidMessageError(
                    f"weight {name!r} is given twice (first as {before!r}); nothing was loaded"
                )
            given[name] = tensor
        missing = [name for name, storage in self._storage_of.items() if storage not in filled]
        if missing:
            raise InvalidMessageError(
                f"{len(missing)} weights are missing, such as {missing[:_NAMES_SHOWN]}; nothing was loaded"
            )
        return given


def _bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor in main memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _exchangeable(by_name: Mapping[str, torch.Tensor], spare_bytes: int) -> Mapping[str, list[torch.Tensor]]:
    """By name, the tensors that stand for one storage in main memory and are given other memory together.

    A storage of which somebody else has a view that begins elsewhere keeps its memory: there must be one view of it, or equal ones.
    """
    holders: dict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor in by_name.items():
        holders[tensor.untyped_storage().data_ptr()].append((name, tensor))
    found, size = {}, 0
    for group in holders.values():
        tensors = [tensor for _, tensor in group]
        first = tensors[0]
        whole = first.is_contiguous() and first.nbytes == first.untyped_storage().nbytes()
        if first.device.type == "cpu" and whole and all(_same_view(first, other) for other in tensors):
            found.update({name: tensors for name, _ in group})
            size += first.nbytes
    return found if size <= spare_bytes else {}


def _same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype, one.data_ptr()) == (
        other.shape, other.stride(), other.dtype, other.data_ptr(),
    )  # fmt: skip
