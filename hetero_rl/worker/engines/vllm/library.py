"""The installed vLLM: its classes, and what this release of it has. Found by looking, never by its version number.

The calls that this engine makes exist from 0.23 to 0.33; what differs between them is looked for here once.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from hetero_rl.errors import EngineError

__all__ = ["Features", "Library", "load_library"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the installed release has, as its classes show it."""

    version_labels: bool
    """`AsyncLLM.update_weight_version` and `CompletionOutput.weight_versions` (0.32): outputs say which weights sampled them."""
    refuses_while_paused: bool
    """Requests sent during a pause may be refused with a retryable error (0.33), where others are queued."""
    stream_interval: str
    """Where the number of tokens between two outputs is set: "request" (0.27), "engine", or "" for nowhere."""
    engine_arguments: frozenset[str]
    """Fields of `AsyncEngineArgs`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The classes of vLLM that are used."""

    version: str
    platform: str
    """What vLLM calls the device: "cpu", "cuda" (AMD too) or "npu"."""
    engine_class: Any
    engine_arguments_class: Any
    sampling_class: Any
    cumulative: Any
    """`RequestOutputKind.CUMULATIVE`."""
    dead_error: type[BaseException]
    retryable_error: type[BaseException] | None
    refusals: tuple[type[BaseException], ...]
    """What a request that cannot be served raises: ValueError, and since 0.32 a class of vLLM's own."""
    features: Features


def load_library(import_module: Callable[[str], Any] = importlib.import_module) -> Library:
    """Imports vLLM and looks at it.

    Args:
        import_module: How modules are found; `importlib.import_module`.

    Raises:
        EngineError: It cannot be imported, or it lacks something that every known release has.
    """
    try:
        found = {name: import_module(name) for name in _MODULES}
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise EngineError(
            f"vLLM is installed but cannot be imported: {error}. A torchvision or torchaudio built for another torch does "
            "this; text models need neither (docs/vllm.md)"
        ) from error
    engine = found["vllm.v1.engine.async_llm"].AsyncLLM
    arguments = found["vllm.engine.arg_utils"].AsyncEngineArgs
    sampling, outputs = found["vllm.sampling_params"], found["vllm.outputs"]
    retryable = _own_error(import_module, "RetryableRequestError")
    client_error = _own_error(import_module, "VLLMClientError")
    features = Features(
        version_labels=hasattr(engine, "update_weight_version")
        and "weight_versions" in _fields(outputs.CompletionOutput),
        refuses_while_paused=retryable is not None,
        stream_interval=_stream_interval(sampling.SamplingParams, arguments),
        engine_arguments=_fields(arguments),
    )
    _check_complete(engine, sampling.SamplingParams, features)
    return Library(
        version=str(getattr(found["vllm"], "__version__", "")),
        platform=str(found["vllm.platforms"].current_platform.device_type),
        engine_class=engine,
        engine_arguments_class=arguments,
        sampling_class=sampling.SamplingParams,
        cumulative=sampling.RequestOutputKind.CUMULATIVE,
        dead_error=found["vllm.v1.engine.exceptions"].EngineDeadError,
        retryable_error=retryable,
        refusals=(ValueError,) if client_error is None else (ValueError, client_error),
        features=features,
    )


_MODULES = (
    "vllm",
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.sampling_params",
    "vllm.outputs",
    "vllm.v1.engine.exceptions",
    "vllm.platforms",
)
_METHODS = {
    "from_engine_args": (),
    "generate": ("prompt", "sampling_params", "request_id"),
    "pause_generation": ("mode", "clear_cache"),
    "resume_generation": (),
    "collective_rpc": ("method", "args"),
    "shutdown": (),
}
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "logprobs",
    "prompt_logprobs",
    "flat_logprobs",
    "detokenize",
    "output_kind",
    "logit_bias",
)
_ARGUMENTS = (
    "model",
    "worker_extension_cls",
    "logprobs_mode",
    "skip_tokenizer_init",
    "load_format",
    "generation_config",
)


def _check_complete(engine: Any, sampling: Any, features: Features) -> None:
    """Raises EngineError naming what is missing."""
    missing = [f"SamplingParams.{name}" for name in _SAMPLING if name not in _fields(sampling)]
    missing += [f"AsyncEngineArgs.{name}" for name in _ARGUMENTS if name not in features.engine_arguments]
    for name, parameters in _METHODS.items():
        method = getattr(engine, name, None)
        found = inspect.signature(method).parameters if method is not None else {}
        lacking = method is None or any(parameter not in found for parameter in parameters)
        if lacking:
            missing.append(f"AsyncLLM.{name}({', '.join(parameters)})")
    if missing:
        raise EngineError(f"this vLLM lacks {', '.join(missing)}; the engine cannot use it")


def _fields(cls: Any) -> frozenset[str]:
    """Names of a class's fields: dataclasses and msgspec structures alike."""
    names: set[str] = set()
    for base in getattr(cls, "__mro__", ()):
        names.update(getattr(base, "__annotations__", {}))
    return frozenset(names)


def _own_error(import_module: Callable[[str], Any], name: str) -> type[BaseException] | None:
    """An exception class of vLLM's; None in releases that lack it."""
    try:
        found: type[BaseException] | None = getattr(import_module("vllm.exceptions"), name, None)
    except ImportError:
        return None
    return found


def _stream_interval(sampling: Any, arguments: Any) -> str:
    if "stream_interval" in _fields(sampling):
        return "request"
    return "engine" if "stream_interval" in _fields(arguments) else ""
