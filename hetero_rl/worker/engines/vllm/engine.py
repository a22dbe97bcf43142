"""vLLM on the event loop of a worker: checks what comes in, sends it, keeps track of which weights sampled what.

    generate() ── a task for each sample ──► turnstile ──► request ──► last output ──► ended? ── no: next segment ─┐
                                                ▲  ▲───────────────────────────────────────────────────────────────┘
    score() ────── a request each ──────────────┤
    load_weights() ── names, shapes ─► file ────┴─► closed: pause ─► load in vLLM's worker ─► label ─► resume

How completions live through an update depends on the release:
- it labels tokens (0.32): they are frozen ("keep"), their states are computed again, and outputs say who sampled what;
- it does not (0.23): they are stopped ("abort") with what they have, and go on as a new request under the new weights.

Who waits: samples and scores at the turnstile, an update for scores (and for completions when draining). Shutdown:
`close` cancels the tasks, whose callers get an EngineError, and ends vLLM's processes. A process of vLLM that dies ends
every open request with an EngineError.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import torch
from typing_extensions import override

from hetero_rl.errors import BackendError, ConfigError, EngineError, InvalidMessageError
from hetero_rl.weights.model_files import model_digests
from hetero_rl.wire.columns import Float32Bytes, float32_column, int32_view
from hetero_rl.wire.messages import (
    Capabilities,
    GenerateWork,
    ModelDigests,
    NumericsRecord,
    SamplingParameters,
    ScoreWork,
    WeightEncoding,
)
from hetero_rl.worker.engine import Completion, Engine, EngineSettings
from hetero_rl.worker.engines.vllm.client import Client, PausedError
from hetero_rl.worker.engines.vllm.library import Library
from hetero_rl.worker.engines.vllm.requests import (
    Progress,
    decoding_parameters,
    request_seed,
    scored_log_probs,
    scoring_parameters,
    stream_interval,
)
from hetero_rl.worker.engines.vllm.staging import Staging
from hetero_rl.worker.engines.vllm.startup import DATA_TYPES, Started, start_engine
from hetero_rl.worker.engines.vllm.turnstile import Turnstile

__all__ = ["VllmEngine"]

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_COUNT_EVERY = 8
_LEAST_TEMPERATURE, _GREATEST_TEMPERATURE = 0.01, 2.0


class VllmEngine(Engine):
    """vLLM in processes of its own, on whatever device its installed build is for.

    Args:
        settings: As for every engine; `options` are arguments of the engine by vLLM's own names.
        load: Imports vLLM; replaced in tests.

    Without weights in the model directory it serves after the first `load_weights`; with them it serves at once, as
    version 0.
    """

    def __init__(self, settings: EngineSettings, load: Callable[[], Library] | None = None) -> None:
        if settings.dtype not in DATA_TYPES:
            raise ConfigError(f"dtype must be one of {sorted(DATA_TYPES)}, got {settings.dtype!r}")
        if settings.max_concurrent_sequences < 1:
            raise ConfigError(
                f"max_concurrent_sequences must be at least 1, got {settings.max_concurrent_sequences}"
            )
        if settings.emulate:
            raise ConfigError(
                f"emulate is {settings.emulate!r}: only the transformers engine imitates other chips"
            )
        self._settings = settings
        self._load = load
        self._turnstile = Turnstile()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serving = any(settings.model_dir.glob("*.safetensors"))
        self._closed = False
        self._version = 0
        self._unfinished = 0
        self._tokens = 0
        self._busy = 0.0
        self._busy_since = 0.0
        self._started: Started
        self._client: Client
        self._staging: Staging
        self._digests: ModelDigests

    @override
    async def start(self) -> None:
        self._digests = model_digests(self._settings.model_dir)
        started = await start_engine(self._settings, self._load)
        self._started, self._client = started, started.client
        self._staging = Staging(shared=self._settings.shared_dir)

    # --- what it is -------------------------------------------------------------------------------------------------

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_concurrent_sequences=self._settings.max_concurrent_sequences,
            max_sequence_tokens=self._started.longest,
            scoring=True,
            in_flight_update=not self._settings.drain_before_update,
            processed_log_probs=self._started.mode == "processed",
            adapters=True,  # added to the base in `Engine.load_adapted`: every release and vendor loads plain weights
            weight_encodings=(WeightEncoding.FULL_RAW,),
        )

    @override
    def numerics(self) -> NumericsRecord:
        return self._started.numerics

    @override
    def model_digests(self) -> ModelDigests:
        return self._digests

    # --- generating and scoring -------------------------------------------------------------------------------------

    @override
    async def generate(self, work: GenerateWork) -> Sequence[Completion]:
        self._check_serving()
        prompt = int32_view(work.prompt_token_ids).tolist()
        self._check_tokens(f"prompt of group {work.group_id!r}", prompt)
        if len(prompt) >= self._started.longest:
            raise InvalidMessageError(
                f"prompt of group {work.group_id!r} has {len(prompt)} tokens; this engine takes {self._started.longest} with the "
                "completion"
            )
        if not work.sample_indices or len(set(work.sample_indices)) != len(work.sample_indices):
            raise InvalidMessageError(
                f"sample_indices of group {work.group_id!r} must be distinct, at least one"
            )
        self._check_sampling(work.sampling)
        if not self._unfinished:
            self._busy_since = time.perf_counter()
        self._unfinished += len(work.sample_indices)
        samples = [self._complete(prompt, index, work.sampling) for index in work.sample_indices]
        return await self._all(samples, self._ended)

    def _ended(self, _: "asyncio.Task[Any]") -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._busy += time.perf_counter() - self._busy_since

    async def _complete(self, prompt: list[int], index: int, sampling: SamplingParameters) -> Completion:
        """Sends segments until the completion has ended."""
        progress = Progress(index, greedy=sampling.temperature == 0)
        limit = min(sampling.max_new_tokens, self._started.longest - len(prompt))
        while progress.finish_reason is None:
            done = len(progress.token_ids)
            parameters = decoding_parameters(
                sampling, seed=request_seed(sampling.seed, index, done), max_tokens=limit - done
            )
            parameters.update(stream_interval(self._started.features.stream_interval, _COUNT_EVERY))
            async with self._turnstile.passed("decode"):
                try:
                    output = await self._client.request(
                        [*prompt, *progress.token_ids], parameters, salt=self._salt, on_tokens=self._count
                    )
                except PausedError:
                    continue
            # A request that a pause stops ends before the new weights are loaded, and one that comes too late for it
            # begins after: in both cases its tokens are of the version that serves when its end arrives.
            progress.add(output.outputs[0], self._version, labelled=self._started.labelled)
        return progress.completion()

    @override
    async def score(self, work: ScoreWork) -> Float32Bytes:
        self._check_serving()
        token_ids = int32_view(work.token_ids).tolist()
        self._check_tokens(f"tokens of {work.score_id!r}", token_ids)
        if min(work.lengths, default=0) < 1 or sum(work.lengths) != len(token_ids):
            raise InvalidMessageError(
                f"lengths of {work.score_id!r} sum to {sum(work.lengths)}, {len(token_ids)} tokens are there"
            )
        if max(work.lengths) > self._started.longest:
            raise InvalidMessageError(
                f"a sequence of {work.score_id!r} has {max(work.lengths)} tokens; this engine takes {self._started.longest}"
            )
        starts = [sum(work.lengths[:position]) for position in range(len(work.lengths))]
        sequences = [
            token_ids[start : start + length] for start, length in zip(starts, work.lengths, strict=True)
        ]
        async with self._turnstile.passed("score"):
            if work.weight_version != self._version:
                raise BackendError(
                    f"scoring was wanted under version {work.weight_version}, version {self._version} is loaded"
                )
            scores = await self._all([self._scored(sequence) for sequence in sequences])
        return float32_column(value for values in scores for value in values)

    async def _scored(self, sequence: list[int]) -> list[float]:
        if len(sequence) == 1:
            return []
        output = await self._client.request(sequence, scoring_parameters(), salt=self._salt)
        return scored_log_probs(output.prompt_logprobs, sequence)

    # --- weights ----------------------------------------------------------------------------------------------------

    @override
    async def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        checked = await asyncio.to_thread(self._started.names.checked, tensors)
        path = await asyncio.to_thread(self._staging.write, checked)
        try:
            async with self._turnstile.closed(drain=self._settings.drain_before_update):
                await self._replace(str(path), version)
        finally:
            await asyncio.to_thread(self._staging.remove, path)

    async def _replace(self, path: str, version: int) -> None:
        """Pauses, loads and resumes. Pausing drops all cached states: old ones would be used with new weights."""
        client, llm = self._client, self._client.llm
        mode = "keep" if self._started.labelled else "abort"
        await client.call("pausing", llm.pause_generation(mode=mode, clear_cache=True))
        (fixups, *_) = await client.call(
            "loading weights", llm.collective_rpc("hetero_rl_load", args=(path,))
        )
        if self._started.labelled:
            await client.call("labelling the weights", llm.update_weight_version(str(version)))
        self._version = version
        self._serving = True
        await client.call("resuming", llm.resume_generation())
        if fixups:
            _logger.debug("after loading version %d: %s", version, ", ".join(fixups))

    # --- counters and the end ---------------------------------------------------------------------------------------

    @property
    @override
    def adapted_type(self) -> torch.dtype:
        return DATA_TYPES[self._settings.dtype]

    @property
    @override
    def loaded_version(self) -> int:
        return self._version

    @property
    @override
    def unfinished_sequences(self) -> int:
        return self._unfinished

    @property
    @override
    def generated_tokens(self) -> int:
        return self._tokens

    @property
    @override
    def busy_seconds(self) -> float:
        running = time.perf_counter() - self._busy_since if self._unfinished else 0.0
        return self._busy + running

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if hasattr(self, "_client"):
            await asyncio.to_thread(self._client.llm.shutdown)

    # --- helpers ----------------------------------------------------------------------------------------------------

    @property
    def _salt(self) -> str:
        return f"version {self._version}"

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

    async def _all(
        self,
        work: Sequence[Coroutine[Any, Any, T]],
        on_end: "Callable[[asyncio.Task[Any]], None]" = lambda _: None,
    ) -> list[T]:
        """Awaits all; when one fails or the caller is cancelled, the others are cancelled and waited for."""
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        for task in tasks:
            task.add_done_callback(on_end)
        self._tasks.update(tasks)
        try:
            return await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine is closed") from None
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)

    def _check_serving(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        if not self._serving:
            raise BackendError("no weights are loaded yet; call load_weights before generate or score")

    def _check_tokens(self, what: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise InvalidMessageError(f"{what}: there are none")
        if min(token_ids) < 0 or max(token_ids) >= self._started.names.vocabulary_size:
            raise InvalidMessageError(
                f"{what}: ids must lie in [0, {self._started.names.vocabulary_size}), got {min(token_ids)} to {max(token_ids)}"
            )

    def _check_sampling(self, sampling: SamplingParameters) -> None:
        temperature = sampling.temperature
        if temperature and not _LEAST_TEMPERATURE <= temperature <= _GREATEST_TEMPERATURE:
            raise InvalidMessageError(
                f"temperature is {temperature}; vLLM samples at 0 or from {_LEAST_TEMPERATURE} to {_GREATEST_TEMPERATURE}"
            )
        if temperature and not sampling.portable and self._started.mode != "processed":
            raise InvalidMessageError(
                f"temperature {temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}: this engine reports raw "
                "log-probabilities, which are those of the sampled distribution at temperature 1, top_p 1, top_k 0 only"
            )
