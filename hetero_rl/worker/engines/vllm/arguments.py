"""The engine's arguments: this package's settings, then options by vLLM's own names, then what is no choice."""

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_rl.errors import ConfigError, EngineError
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.vllm.library import Features

__all__ = ["EXTENSION", "context_tokens", "engine_arguments", "is_eager", "kv_cache_bytes"]

EXTENSION = "hetero_rl.worker.engines.vllm.extension.WeightExtension"

_STREAM_INTERVAL = 8
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SMALLEST_CACHE = 64 * 2**20
_CACHED_TOKENS = 1024
"""Tokens of each running completion that the cache of a CPU has room for unless options say otherwise."""

_RESERVED = frozenset(
    {
        "model",
        "tokenizer",
        "trust_remote_code",
        "dtype",
        "load_format",
        "worker_extension_cls",
        "worker_cls",
        "runner",
        "skip_tokenizer_init",
        "generation_config",
        "max_num_seqs",
        "hf_overrides",
        "speculative_config",
        "weight_transfer_config",
    }
)
"""Arguments that the engine itself sets, or that would run code that came with a model."""


def is_eager(settings: EngineSettings) -> bool:
    """Whether nothing is compiled: the default. On a CPU compiling takes longer than a small run."""
    return bool(settings.options.get("enforce_eager", True))


def engine_arguments(
    settings: EngineSettings, features: Features, *, platform: str, architecture: str
) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`.

    Args:
        settings: What the engine is started with; `options` are arguments by vLLM's own names.
        features: What the installed release has.
        platform: What vLLM calls the device: "cpu", "cuda" (AMD too) or "npu".
        architecture: Class of the model, for a configuration that does not name it.

    Raises:
        ConfigError: An option is unknown to this release, or is not for settings to decide.
    """
    options = _checked_options(settings.options, features)
    config = _read_config(settings.model_dir)
    arguments: dict[str, Any] = {
        "seed": 0,
        "enforce_eager": True,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "max_model_len": context_tokens(config),
        "disable_log_stats": True,
    }
    if platform == "cpu":
        arguments["kv_cache_memory_bytes"] = kv_cache_bytes(config, settings)
    if features.stream_interval == "engine":
        arguments["stream_interval"] = _STREAM_INTERVAL
    arguments.update(options)
    has_weights = any(settings.model_dir.glob("*.safetensors"))
    arguments.update(
        model=str(settings.model_dir),
        tokenizer=str(settings.model_dir),
        runner="generate",
        skip_tokenizer_init=True,
        trust_remote_code=False,
        dtype=settings.dtype,
        load_format="safetensors" if has_weights else "dummy",
        generation_config="vllm",
        max_num_seqs=settings.max_concurrent_sequences,
        worker_extension_cls=EXTENSION,
    )
    if not config.get("architectures"):
        # vLLM would take the bare model for one that embeds, and answer no request.
        arguments["hf_overrides"] = {"architectures": [architecture]}
    # What an older release lacks of the engine's own choices, it does not need.
    return {name: value for name, value in arguments.items() if name in features.engine_arguments}


def context_tokens(config: Mapping[str, Any]) -> int:
    """Longest sequence of a model; raises EngineError when its configuration does not say."""
    found = next((config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), 0)
    if not found:
        raise EngineError(
            f"config.json has none of {', '.join(_CONTEXT_KEYS)}; give the longest sequence with "
            "inference.worker.engine_options.max_model_len"
        )
    return int(found)


def kv_cache_bytes(config: Mapping[str, Any], settings: EngineSettings) -> int:
    """Room for the keys and values on a CPU: for all sequences at once, at most a quarter of the machine's memory.

    vLLM's own default takes most of the machine, which a trainer shares here.
    """
    heads = int(config.get("num_key_value_heads") or config.get("num_attention_heads") or 1)
    queries = int(config.get("num_attention_heads") or 1)
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 1) // queries)
    layers = int(config.get("num_hidden_layers") or 1)
    token = 2 * layers * heads * width * _BYTES[settings.dtype]
    asked = settings.options.get("max_model_len")
    longest = asked if isinstance(asked, int) and asked > 0 else context_tokens(config)
    wanted = token * max(longest, settings.max_concurrent_sequences * min(longest, _CACHED_TOKENS))
    memory: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_SMALLEST_CACHE, token * longest * 2, min(wanted, memory // 4))


def _checked_options(options: Mapping[str, object], features: Features) -> dict[str, object]:
    for name in options:
        if name in _RESERVED:
            raise ConfigError(
                f"engine option {name!r} is not for settings to decide; this engine sets it or leaves it out"
            )
        if name not in features.engine_arguments:
            near = difflib.get_close_matches(name, sorted(features.engine_arguments), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"engine option {name!r} is unknown to the installed vLLM{hint}")
    return dict(options)


def _read_config(model_dir: Path) -> dict[str, Any]:
    try:
        config = json.loads((model_dir / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(
            f"model directory {model_dir} has no usable config.json: {error}; give a Hugging Face model directory"
        ) from error
    if not isinstance(config, dict):
        raise EngineError(f"{model_dir / 'config.json'} holds no object")
    text: dict[str, Any] = {**config, **config.get("text_config", {})}
    return text
