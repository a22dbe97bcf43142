"""The model directory of a run and everything read from it: policy, tokenizer, stop tokens."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError
from hetero_rl.tasks import PromptEncoder
from hetero_rl.trainer.policy import DATA_TYPES, Policy, choose_device, load_policy

__all__ = ["ModelSource", "open_model", "stop_tokens"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A loaded model directory."""

    directory: Path
    policy: Policy
    encoder: PromptEncoder
    stop_token_ids: tuple[int, ...]
    """A completion ends with the first of these."""


def open_model(config: Config, directory: Path | None = None) -> ModelSource:
    """Loads the model of a run.

    Args:
        config: The resolved settings.
        directory: The model directory; None reads `model.path`, and makes the starter model when that asks
            for it.

    Raises:
        ConfigError: The directory cannot be used, or it names no token that ends a completion.
        TaskError: The task's prompts do not fit the model.
    """
    directory = directory or _model_directory(config)
    policy = load_policy(
        directory,
        device=choose_device(config.trainer.device),
        compute_dtype=DATA_TYPES[config.trainer.compute_dtype],
        attention=config.model.attention,
    )
    tokenizer = _load_tokenizer(directory)
    encoder = PromptEncoder(
        tokenizer,
        config.task,
        max_new_tokens=config.sampling.max_new_tokens,
        context_tokens=getattr(policy.model.config, "max_position_embeddings", None),
    )
    return ModelSource(
        directory=directory,
        policy=policy,
        encoder=encoder,
        stop_token_ids=stop_tokens(directory, tokenizer.eos_token_id),
    )


def _model_directory(config: Config) -> Path:
    if config.model.path != "starter":
        return Path(config.model.path).expanduser()
    from hetero_rl.starter import ensure_starter

    return ensure_starter(config)


def stop_tokens(directory: Path, tokenizer_end: int | None) -> tuple[int, ...]:
    """Ids that end a completion: those of generation_config.json, of config.json, and the tokenizer's own.

    Raises:
        ConfigError: There is none, so no completion would ever end by itself.
    """
    found: set[int] = set() if tokenizer_end is None else {tokenizer_end}
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            found.update(value if isinstance(value, list) else [] if value is None else [value])
    if not found:
        raise ConfigError(
            f"model directory {str(directory)!r} names no end-of-sequence token: set eos_token_id in"
            " generation_config.json"
        )
    return tuple(sorted(found))


def _load_tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(f"model directory {str(directory)!r} has no usable tokenizer: {error}") from error
