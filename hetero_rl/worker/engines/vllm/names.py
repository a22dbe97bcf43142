"""Names and shapes that a weight version must have, and the names under which vLLM reads them.

The hub's names are those of the trainer's module; transformers 5 keeps the experts of a layer in one tensor there, while
checkpoints, and so every release of vLLM, have one for each expert.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hetero_rl.errors import EngineError, InvalidMessageError

__all__ = ["WeightNames"]

_NAMES_SHOWN = 5


class WeightNames:
    """The weights of a model, by a module on the meta device: names, shapes and ties, no numbers.

    Args:
        model_dir: Hugging Face directory; only its configuration is read.
        dtype: Data type that the engine computes in.

    Raises:
        EngineError: transformers in this environment does not know the model.
    """

    def __init__(self, model_dir: Path, dtype: torch.dtype) -> None:
        self._model = _meta_model(model_dir, dtype)
        self._by_name: dict[str, torch.Tensor] = dict(self._model.state_dict(keep_vars=True))
        self._experts = _expert_joiner(self._by_name)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids that the model has an embedding for."""
        return int(self._model.get_input_embeddings().num_embeddings)

    @property
    def architecture(self) -> str:
        """Class of the model, as a checkpoint's configuration names it."""
        return type(self._model).__name__

    def checked(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Reads all tensors, compares them with the model, and gives them the names of its checkpoint.

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
            before = filled.setdefault(id(target), name)
            if name in given or before != name:
                raise InvalidMessageError(
                    f"weight {name!r} is given twice (first as {before!r}); nothing was loaded"
                )
            given[name] = tensor
        missing = [name for name, target in self._by_name.items() if id(target) not in filled]
        if missing:
            raise InvalidMessageError(
                f"{len(missing)} weights are missing, such as {missing[:_NAMES_SHOWN]}; nothing was loaded"
            )
        return self._checkpoint_names(given)

    def _checkpoint_names(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        try:
            from transformers.core_model_loading import revert_weight_conversion
        except ImportError:  # a transformers whose modules have the names of the checkpoint
            return dict(given)
        converted: dict[str, torch.Tensor] = revert_weight_conversion(self._model, dict(given))
        return converted


def _expert_joiner(by_name: Mapping[str, torch.Tensor]) -> Any:
    # Imported here: vLLM's own processes import this package too, and need no second engine.
    from hetero_rl.worker.engines.transformers.experts import ExpertJoiner

    return ExpertJoiner({name: tensor.shape for name, tensor in by_name.items()})


def _meta_model(model_dir: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        model.tie_weights()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError) as error:
        raise EngineError(
            f"transformers in this environment cannot read the model in {model_dir}: {error}"
        ) from error
    return model
