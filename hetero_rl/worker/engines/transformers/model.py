"""Building the model from its directory, and replacing its weights in place."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from hetero_rl.errors import EngineError, InvalidMessageError
from hetero_rl.worker.engines.transformers.experts import ExpertJoiner

__all__ = ["ATTENTION", "DATA_TYPES", "WeightTable", "build_model"]

DATA_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ATTENTION = "sdpa"
"""Attention implementation of transformers that the engine uses."""

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


class WeightTable:
    """The weights of a model by their checkpoint names; tied names stand for one storage.

    Args:
        model: A model whose state dictionary has the names of its checkpoint.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._by_name: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))
        self._experts = ExpertJoiner({name: tensor.shape for name, tensor in self._by_name.items()})
        self._storage_of: dict[str, int] = {name: tensor.data_ptr() for name, tensor in self._by_name.items()}

    def checked(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Mapping[str, torch.Tensor]:
        """Reads all tensors and compares names and shapes with the model; changes nothing.

        Experts may come in one tensor for a layer, as transformers 5 keeps them, or one by one, as checkpoints do.

        Raises:
            InvalidMessageError: A name is missing, unknown or given twice, or a shape is wrong.
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

    @torch.no_grad()
    def replace(self, checked: Mapping[str, torch.Tensor]) -> None:
        """Copies checked tensors into the storage that the model computes with."""
        for name, tensor in checked.items():
            self._by_name[name].copy_(tensor)
