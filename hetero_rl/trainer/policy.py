"""The policy that is trained: float32 master weights, computed in the data type and on the device of the settings."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hetero_rl.errors import ConfigError
from hetero_rl.trainer.forward import PolicyForward, TokenInputs
from hetero_rl.trainer.layout import RowTokens, packed_inputs, padded_inputs
from hetero_rl.trainer.output_head import OutputHead, find_output_head
from hetero_rl.trainer.packing import enable_packing

if TYPE_CHECKING:
    from hetero_rl.trainer.adapters import Adapters
    from hetero_rl.trainer.sharding import Sharded

__all__ = ["DATA_TYPES", "Policy", "choose_device", "load_policy"]

DATA_TYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A causal language model, where it computes and in which data type.

    The model stays in evaluation mode, gradients or not: dropout would make log pi differ from log mu by chance.
    """

    model: Any
    """A Hugging Face causal language model; Any because transformers ships no usable types."""
    device: torch.device
    compute_dtype: torch.dtype
    head: OutputHead | None = None
    """Output head; None lets the model make logits."""
    head_dtype: torch.dtype = torch.float32
    """Type of the head's products."""
    packed: bool = False
    """Whether the model takes packed rows, in which completions share their prompt."""
    overrides: Mapping[str, Tensor] | None = None
    """Tensors that the forward pass computes with in place of the parameters of these names."""
    sharded: "Sharded | None" = None
    """Where the parameters are in parts on several ranks."""
    adapters: "Adapters | None" = None
    """Where low-rank adapters are trained and the model's own parameters are frozen."""

    @property
    def vocabulary_size(self) -> int:
        """Number of ids that the model has an embedding for."""
        return int(self.model.get_input_embeddings().num_embeddings)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Trainable parameters, each once however many names share it."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by name, each once: of tied names the first."""
        return dict(self.model.named_parameters())

    def compute(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which forward passes run: autocast, or nothing for float32."""
        # Sharded parameters are gathered in the compute type already.
        if self.compute_dtype == torch.float32 or self.sharded is not None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def forward_module(self) -> PolicyForward:
        """The forward pass over this model, as a module; every call of a sharded policy gives the same one."""
        if self.sharded is not None:
            return self.sharded.module
        return PolicyForward(self.model, self.head, head_dtype=self.head_dtype)

    def inputs(self, rows: Sequence[RowTokens]) -> TokenInputs:
        """Rows in the layout that the model takes, on its device."""
        inputs = packed_inputs(rows) if self.packed else padded_inputs(rows)
        return inputs.to(self.device)

    def log_probs(self, inputs: TokenInputs, temperature: float = 1.0) -> Tensor:
        """Log-probabilities [N] float32 of the targets, without gradients, on the device."""
        module = self.forward_module()
        with torch.no_grad(), self.compute():
            if self.overrides is None:
                return module(inputs, temperature)[1].log_probs  # type: ignore[no-any-return]  # modules return Any
            call: Callable[..., Any] = torch.func.functional_call
            named = {f"model.{name}": tensor for name, tensor in self.overrides.items()}
            return call(module, named, (inputs, temperature))[1].log_probs  # type: ignore[no-any-return]  # the same

    def twin(self, device: str | None = None) -> "Policy":
        """The same module over the same parameter storage, as objects of its own.

        `torch.func.functional_call` on the twin never touches the module that another thread trains.

        Args:
            device: Where the twin's parameters are instead, "meta" for none at all; buffers are shared anyway.
        """
        if self.sharded is not None:
            if self.sharded.twin is None:
                raise ValueError(
                    f"rank {self.sharded.ranks.rank} has no twin; only rank 0 computes under snapshots"
                )
            return self.sharded.twin
        if self.adapters is not None:
            return self.adapters.twin
        shared: dict[int, Tensor] = {id(buffer): buffer for buffer in self.model.buffers()}
        for parameter in self.model.parameters():
            other = (
                parameter
                if device is None
                else torch.nn.Parameter(parameter.detach().to(device), requires_grad=False)
            )
            shared[id(parameter)] = other
        return dataclasses.replace(self, model=copy.deepcopy(self.model, shared))


def choose_device(name: str) -> torch.device:
    """The torch device a setting names; "auto" is the accelerator of this machine if there is one."""
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise ConfigError(
                f"trainer.device is {name!r}, which torch does not know; give auto, cpu or cuda:0"
            ) from error
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")


def load_policy(
    directory: Path,
    *,
    device: torch.device,
    compute_dtype: torch.dtype,
    head_dtype: torch.dtype | None = None,
    attention: str = "sdpa",
) -> Policy:
    """Loads a Hugging Face causal language model directory in safetensors as float32 master weights.

    Code that comes with a model is never run and pickled weights are never read.

    Args:
        directory: The model directory.
        device: Where the model computes.
        compute_dtype: Type of forward and backward.
        head_dtype: Type of the output head's products; None is `compute_dtype`, but float32 for float16.
        attention: Attention implementation.

    Raises:
        ConfigError: The directory is missing, has no config.json or no safetensors, or is not a causal language model.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    _check_directory(directory)
    transformers_logging.disable_progress_bar()  # its bars would tear the live view
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(
            f"model.path {str(directory)!r} cannot be loaded as a causal language model: {error}"
        ) from error
    model = model.to(device).eval()
    if head_dtype is None:
        # Sums over a vocabulary leave the range of float16.
        head_dtype = torch.float32 if compute_dtype == torch.float16 else compute_dtype
    return Policy(
        model=model,
        device=device,
        compute_dtype=compute_dtype,
        head=find_output_head(model, device),
        head_dtype=head_dtype,
        packed=enable_packing(model, device),
    )


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigError(
            f"model.path {str(directory)!r} is not a directory; give a Hugging Face model directory or 'starter'"
        )
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"model.path {str(directory)!r} has no config.json; is it a Hugging Face model directory?"
        )
    if not any(directory.glob("*.safetensors")):
        raise ConfigError(
            f"model.path {str(directory)!r} has no *.safetensors; convert its weights to safetensors first"
        )
