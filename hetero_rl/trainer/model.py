"""The model directory of a run and everything read from it: policy, tokenizer, stop tokens."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError
from hetero_rl.tasks import PromptEncoder
from hetero_rl.trainer.adapters import add_adapters
from hetero_rl.trainer.output_head import decoder_layers
from hetero_rl.trainer.policy import Policy, choose_device, load_policy
from hetero_rl.trainer.precision import Precision
from hetero_rl.trainer.ranks import Ranks
from hetero_rl.trainer.sharding import checkpoint_activations, shard_policy

__all__ = ["ModelSource", "open_model", "open_policy", "stop_tokens"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A loaded model directory."""

    directory: Path
    policy: Policy
    encoder: PromptEncoder
    stop_token_ids: tuple[int, ...]
    """A completion ends with the first of these."""


def open_model(config: Config, directory: Path | None = None, ranks: Ranks | None = None) -> ModelSource:
    """Loads the model of a run.

    Args:
        config: The resolved settings.
        directory: The model directory; None reads `model.path`, and makes the starter model when that asks
            for it.
        ranks: The trainer's processes, over which the model is sharded; None when there is one.

    Raises:
        ConfigError: The directory cannot be used, or it names no token that ends a completion.
        TaskError: The task's prompts do not fit the model.
    """
    directory = directory or _model_directory(config)
    policy = open_policy(config, directory, ranks)
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


def open_policy(
    config: Config, directory: Path, ranks: Ranks | None = None, *, adapted: bool = True
) -> Policy:
    """Loads the policy of a run from a model directory, sharded where there are several ranks.

    Args:
        config: The resolved settings.
        directory: The model directory.
        ranks: The trainer's processes; None when there is one.
        adapted: Whether it gets the adapters of `trainer.lora`, if there are any.
    """
    precision = Precision.of(config.trainer)
    precision.apply()
    policy = load_policy(
        directory,
        device=choose_device(config.trainer.device) if ranks is None else ranks.device,
        compute_dtype=precision.compute,
        head_dtype=precision.head,
        attention=config.model.attention,
    )
    if config.trainer.lora.rank and adapted:
        policy = add_adapters(policy, config.trainer.lora, seed=config.run.seed)
    if config.trainer.activation_checkpointing:
        checkpoint_activations(policy.model)
    if config.trainer.compile:
        for layer in decoder_layers(policy.model):
            layer.compile()
    return policy if ranks is None else shard_policy(policy, ranks)


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
