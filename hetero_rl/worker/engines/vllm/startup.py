"""From settings to a running vLLM that was looked at and measured.

check what can be known without vLLM ─► environment ─► import ─► names of the weights ─► start (a thread) ─► measure
"""

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import torch

from hetero_rl.errors import ConfigError, EngineError
from hetero_rl.wire.messages import NumericsRecord
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.vllm import installation
from hetero_rl.worker.engines.vllm.arguments import engine_arguments, is_eager
from hetero_rl.worker.engines.vllm.client import Client
from hetero_rl.worker.engines.vllm.library import Features, Library, load_library
from hetero_rl.worker.engines.vllm.measure import measure_labels, measure_mode
from hetero_rl.worker.engines.vllm.names import WeightNames
from hetero_rl.worker.engines.vllm.numerics import numerics_record

__all__ = ["DATA_TYPES", "Started", "check_spread", "start_engine"]

_logger = logging.getLogger(__name__)

DATA_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_KNOBS = ("enforce_eager", "enable_prefix_caching", "max_num_batched_tokens", "tensor_parallel_size")
"""Arguments that change which kernels run or how numbers are added up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running vLLM and what is known of it."""

    client: Client
    features: Features
    names: WeightNames
    longest: int
    """Most tokens of a sequence: one less than the model has positions, because scoring samples a token after it."""
    mode: str
    """Log-probabilities that it reports, as measured: "raw" or "processed"."""
    labelled: bool
    """Whether its outputs say which weights sampled them, as measured."""
    numerics: NumericsRecord


async def start_engine(settings: EngineSettings, load: Callable[[], Library] | None = None) -> Started:
    """Starts vLLM.

    Args:
        settings: What the engine is started with.
        load: Imports vLLM; None takes the installed one.

    Raises:
        ConfigError: An option is unknown to this vLLM.
        EngineError: It is missing, of another release, does not start, or reports what cannot be used.
    """
    library = await asyncio.to_thread(load or (lambda: _installed(settings)))
    names = await asyncio.to_thread(WeightNames, settings.model_dir, DATA_TYPES[settings.dtype])
    arguments = engine_arguments(
        settings, library.features, platform=library.platform, architecture=names.architecture
    )
    client = Client(library, await _built(library, arguments))
    try:
        return await _measured(settings, library, names, client, arguments)
    except BaseException:
        await asyncio.to_thread(client.llm.shutdown)
        raise


def check_spread(settings: EngineSettings) -> None:
    """Raises ConfigError for an engine on several nodes that could not get new weights to all of them."""
    spread = settings.options.get("distributed_executor_backend") == "ray"
    if spread and settings.shared_dir is None:
        raise ConfigError(
            "inference.worker.engine_options.distributed_executor_backend is 'ray': vLLM then runs on several nodes, which get "
            "new weights through files. Set inference.worker.shared_dir to a directory that all of them see"
        )


def _installed(settings: EngineSettings) -> Library:
    """Imports vLLM after everything that can be known to be wrong without it."""
    check_spread(settings)
    installation.check_installed()
    installation.check_release(installation.installed_version())
    eager = is_eager(settings)
    installation.apply_environment(installation.process_environment(threads=settings.threads, eager=eager))
    library = load_library()
    if library.platform == "cpu" and not eager and installation.cpp_compiler() is None:
        raise EngineError(
            "enforce_eager is off, and compiling for a CPU needs a C++ compiler, which is not found: install g++, set CXX, or "
            "leave inference.worker.engine_options.enforce_eager on"
        )
    return library


async def _built(library: Library, arguments: dict[str, Any]) -> Any:
    """The running engine; a start that is cancelled is waited for and undone, so that no process is left."""
    building = asyncio.ensure_future(asyncio.to_thread(_build, library, arguments))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        (await building).shutdown()
        raise


def _build(library: Library, arguments: dict[str, Any]) -> Any:
    """Starts vLLM's processes; raises EngineError saying why it cannot."""
    # Ctrl-C reaches every process of a terminal's foreground; vLLM's would end while this worker drains its leases.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return library.engine_class.from_engine_args(library.engine_arguments_class(**arguments))
    except Exception as error:
        raise EngineError(
            f"vLLM {library.version} does not start with the model in {arguments['model']}: {type(error).__name__}: {error}. "
            "What its own processes say is in the log above"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tied(client: Client, arguments: Mapping[str, object]) -> Awaitable[object]:
    """Ties the lives of vLLM's processes to this one's; those that Ray started have no parent of ours to look after."""
    if arguments.get("distributed_executor_backend") == "ray":
        from hetero_rl.worker.engines.vllm.extension import node_identity

        return client.llm.collective_rpc("hetero_rl_follow_on", args=(os.getpid(), node_identity()))  # type: ignore[no-any-return]  # vLLM ships no types here
    return client.llm.collective_rpc("hetero_rl_follow", args=(os.getpid(),))  # type: ignore[no-any-return]  # the same


async def _measured(
    settings: EngineSettings,
    library: Library,
    names: WeightNames,
    client: Client,
    arguments: dict[str, Any],
) -> Started:
    await client.call("tying its life to this worker's", _tied(client, arguments))
    (facts, *_) = await client.call("asking what it runs on", client.llm.collective_rpc("hetero_rl_facts"))
    mode = await measure_mode(client)
    labelled = library.features.version_labels and await measure_labels(client)
    knobs = {name: str(arguments[name]) for name in _KNOBS if name in arguments}
    options = {name: str(value) for name, value in settings.options.items()}
    numerics = numerics_record(
        facts, version=library.version, dtype=settings.dtype, mode=mode, knobs={**knobs, **options}
    )
    _logger.info(
        "vLLM %s on %s: log-probabilities are %s; at an update running completions are %s",
        library.version,
        library.platform,
        mode,
        "frozen" if labelled else "continued as new requests",
    )
    return Started(
        client=client,
        features=library.features,
        names=names,
        longest=int(arguments["max_model_len"]) - 1,
        mode=mode,
        labelled=labelled,
        numerics=numerics,
    )
