"""From a checkpoint to a Hugging Face directory that `transformers` and vLLM load as it is.

checkpoint (float32, verified) ──► cast to the serving type ──► temporary directory ──► loaded, compared ──► renamed

Configuration and tokenizer are the very files that the run began with: another release of transformers would write them
in another way, which an engine with an older one may read as something else. The directory is whole or not there.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hetero_rl.config.tree import LoraConfig
from hetero_rl.errors import ConfigError, StorageError
from hetero_rl.trainer.adapters import ADAPTER_FILE, adapter_config
from hetero_rl.trainer.checkpoint import list_checkpoints, verify_checkpoint
from hetero_rl.trainer.shards import StoredTensors
from hetero_rl.trainer.state import MODEL_FILE
from hetero_rl.trainer.tensor_files import write_tensors
from hetero_rl.weights.model_files import collect_model_files

__all__ = ["choose_checkpoint", "export_adapters", "export_model"]


def choose_checkpoint(checkpoints: Path, step: int | None) -> Path:
    """A verified checkpoint: of that step, or the newest.

    Raises:
        ConfigError: There is none; the steps that there are are named.
        DamagedError: Its bytes are not what its manifest says.
    """
    found = dict(list_checkpoints(checkpoints))
    if not found:
        raise ConfigError(f"{checkpoints} holds no checkpoint yet")
    chosen = max(found) if step is None else step
    if chosen not in found:
        raise ConfigError(f"{checkpoints} holds no checkpoint of step {step}; it holds {sorted(found)}")
    verify_checkpoint(found[chosen])
    return found[chosen]


def export_model(checkpoint: Path, target: Path, dtype: str) -> int:
    """Writes the model of a checkpoint in another data type and loads it again to make sure.

    Args:
        checkpoint: A verified checkpoint: configuration, tokenizer, float32 weights with tied tensors once.
        target: A directory that does not exist or is empty.
        dtype: "bfloat16", "float16" or "float32".

    Returns:
        Bytes of the weights.

    Raises:
        ConfigError: The target is there already.
        StorageError: What was written does not load back as what was meant.
    """
    _check_free(target)
    kind: torch.dtype = getattr(torch, dtype)
    with StoredTensors(checkpoint, "model") as stored:
        tensors = {name: _cast(stored.whole(name), kind) for name in sorted(stored.names)}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        staging = Path(temporary) / "model"
        staging.mkdir()
        for _, path in collect_model_files(checkpoint):
            shutil.copyfile(path, staging / path.name)
        _set_data_type(staging / "config.json", dtype)
        size = write_tensors(staging / MODEL_FILE, tensors).size
        _check(staging, tensors, kind)
        staging.replace(target)
    return size


def export_adapters(checkpoint: Path, target: Path, config: LoraConfig, base: str) -> int:
    """Writes the adapters of a checkpoint as a directory that peft loads onto the model they were trained with.

    Args:
        checkpoint: A verified checkpoint.
        target: A directory that does not exist or is empty.
        config: Rank and alpha of the run.
        base: The model that the adapters belong to, for whoever reads the directory.

    Returns:
        Bytes of the adapters.

    Raises:
        ConfigError: The target is there already, or the checkpoint holds no adapters.
    """
    _check_free(target)
    if not (checkpoint / ADAPTER_FILE).is_file():
        raise ConfigError(
            f"{checkpoint} holds no adapters: all weights were trained; export it without --adapters"
        )
    with StoredTensors(checkpoint, ADAPTER_FILE.removesuffix(".safetensors")) as stored:
        tensors = {name: stored.whole(name) for name in sorted(stored.names)}
    modules = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        staging = Path(temporary) / "adapters"
        staging.mkdir()
        (staging / "adapter_config.json").write_text(adapter_config(config, modules, base), encoding="utf-8")
        size = write_tensors(staging / ADAPTER_FILE, tensors).size
        staging.replace(target)
    return size


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already; name a directory that is not")


def _cast(tensor: Tensor, kind: torch.dtype) -> Tensor:
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _set_data_type(config_file: Path, dtype: str) -> None:
    config: dict[str, Any] = json.loads(config_file.read_text(encoding="utf-8"))
    # The same setting under the names of newer and older releases of transformers.
    config |= {"dtype": dtype, "torch_dtype": dtype}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config.setdefault("rope_theta", rope["rope_theta"])
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _check(directory: Path, expected: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Raises StorageError unless transformers loads the directory as the tensors that were meant."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype="auto", local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    problems = [
        f"{kind}: {sorted(names)[:3]}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if (names := report.get(kind))
    ]
    if loaded.dtype != dtype:
        problems.append(f"it loads as {loaded.dtype}, not {dtype}")
    found = loaded.state_dict()
    problems += [
        f"{name} differs" for name, tensor in expected.items() if not torch.equal(found[name], tensor)
    ]
    if problems:
        raise StorageError(f"the exported model does not load back as it was: {'; '.join(problems[:5])}")
