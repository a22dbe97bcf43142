"""The reference engine on the event loop: checks what comes in, hands it to the scheduler thread, awaits the outcome."""

import asyncio
from collections.abc import Iterable, Sequence

import torch
from typing_extensions import override

from hetero_rl.errors import BackendError, ConfigError, InvalidMessageError
from hetero_rl.weights.model_files import model_digests
from hetero_rl.wire.columns import Float32Bytes, int32_view
from hetero_rl.wire.messages import (
    Capabilities,
    GenerateWork,
    ModelDigests,
    NumericsRecord,
    ScoreWork,
    WeightEncoding,
)
from hetero_rl.worker.emulations import find_emulation
from hetero_rl.worker.engine import Completion, EarlyWeights, Engine, EngineSettings
from hetero_rl.worker.engines.transformers.emulation import emulate_activations, round_weights
from hetero_rl.worker.engines.transformers.forward import Forward
from hetero_rl.worker.engines.transformers.model import (
    ATTENTION,
    DATA_TYPES,
    NewWeights,
    WeightTable,
    build_model,
)
from hetero_rl.worker.engines.transformers.numerics import numerics_record
from hetero_rl.worker.engines.transformers.probe import check_decoding
from hetero_rl.worker.engines.transformers.scheduler import Scheduler

__all__ = ["TransformersEngine"]


class TransformersEngine(Engine):
    """Hugging Face transformers with continuous batching on one thread, for any torch device.

    Without weights in the model directory it serves after the first `load_weights`; with them it serves at once, as
    version 0.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if settings.dtype not in DATA_TYPES:
            raise ConfigError(f"dtype must be one of {sorted(DATA_TYPES)}, got {settings.dtype!r}")
        if settings.max_concurrent_sequences < 1:
            raise ConfigError(
                f"max_concurrent_sequences must be at least 1, got {settings.max_concurrent_sequences}"
            )
        if settings.options:
            raise ConfigError(
                f"the transformers engine takes no options of its own, got {', '.join(sorted(settings.options))}"
            )
        self._settings = settings
        self._emulation = find_emulation(settings.emulate) if settings.emulate else None
        self._scheduler = Scheduler(
            self._build,
            capacity=settings.max_concurrent_sequences,
            drain=settings.drain_before_update,
            threads=settings.threads,
        )
        self._serving = False
        self._model: torch.nn.Module
        self._weights: WeightTable
        self._forward: Forward
        self._numerics: NumericsRecord
        self._digests: ModelDigests

    @override
    async def start(self) -> None:
        self._scheduler.start()
        await asyncio.wrap_future(self._scheduler.ready)

    def _build(self) -> Forward:
        """Loads the model; runs on the scheduler thread."""
        settings, emulation = self._settings, self._emulation
        dtype = (emulation.dtype if emulation else "") or settings.dtype
        model, self._serving = build_model(settings.model_dir, dtype, settings.device or "cpu")
        self._digests = model_digests(settings.model_dir)
        self._weights = WeightTable(model)
        self._forward = Forward(model)
        if emulation is not None:
            emulate_activations(model, emulation)
            round_weights(model, emulation)
        self._model = model
        check_decoding(self._forward, model.config.model_type, DATA_TYPES[dtype])
        self._numerics = numerics_record(self._forward.device, dtype, ATTENTION, emulation)
        return self._forward

    def _replace_weights(self, new: NewWeights) -> None:
        """Runs on the scheduler thread, between two steps."""
        self._weights.replace(new)
        if self._emulation is not None:
            round_weights(self._model, self._emulation)

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_concurrent_sequences=self._settings.max_concurrent_sequences,
            max_sequence_tokens=self._forward.max_positions,
            scoring=True,
            in_flight_update=not self._settings.drain_before_update,
            processed_log_probs=True,
            adapters=True,  # added to the base in `Engine.load_adapted`: no wider a gap than beside it, and faster tokens
            weight_encodings=(WeightEncoding.FULL_RAW,),
        )

    @override
    def numerics(self) -> NumericsRecord:
        return self._numerics

    @override
    def model_digests(self) -> ModelDigests:
        return self._digests

    @override
    async def generate(self, work: GenerateWork) -> Sequence[Completion]:
        self._check_serving()
        prompt = int32_view(work.prompt_token_ids)
        self._check_tokens(f"prompt of group {work.group_id!r}", prompt)
        if len(prompt) >= self._forward.max_positions:
            raise InvalidMessageError(
                f"prompt of group {work.group_id!r} has {len(prompt)} tokens; the model takes "
                f"{self._forward.max_positions} with the completion"
            )
        if not work.sample_indices or len(set(work.sample_indices)) != len(work.sample_indices):
            raise InvalidMessageError(
                f"sample_indices of group {work.group_id!r} must be distinct, at least one"
            )
        return await asyncio.wrap_future(self._scheduler.generate(work))

    @override
    async def score(self, work: ScoreWork) -> Float32Bytes:
        self._check_serving()
        token_ids = int32_view(work.token_ids)
        self._check_tokens(f"tokens of {work.score_id!r}", token_ids)
        if min(work.lengths, default=0) < 1 or sum(work.lengths) != len(token_ids):
            raise InvalidMessageError(
                f"lengths of {work.score_id!r} sum to {sum(work.lengths)}, {len(token_ids)} tokens are there"
            )
        sequences, start = [], 0
        for length in work.lengths:
            sequences.append(token_ids[start : start + length].tolist())
            start += length
        scores = await asyncio.wrap_future(self._scheduler.score(sequences, work.weight_version))
        return Float32Bytes(torch.cat(scores).numpy().tobytes())

    @override
    async def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        new = await asyncio.to_thread(self._weights.new_weights, tensors, version)
        await asyncio.wrap_future(self._scheduler.load(lambda: self._replace_weights(new), version))
        self._serving = True

    @property
    @override
    def early_weights(self) -> EarlyWeights | None:
        return self._weights if self._weights.has_spare_tensors else None

    @property
    @override
    def adapted_type(self) -> torch.dtype:
        return self._forward.dtype

    @property
    @override
    def loaded_version(self) -> int:
        return self._scheduler.loaded_version

    @property
    @override
    def unfinished_sequences(self) -> int:
        return self._scheduler.unfinished_sequences

    @property
    @override
    def generated_tokens(self) -> int:
        return self._scheduler.generated_tokens

    @property
    @override
    def busy_seconds(self) -> float:
        return self._scheduler.busy_seconds

    @override
    async def close(self) -> None:
        await asyncio.to_thread(self._scheduler.close)

    def _check_serving(self) -> None:
        if not self._serving:
            raise BackendError("no weights are loaded yet; call load_weights before generate or score")

    def _check_tokens(self, what: str, token_ids: Sequence[int]) -> None:
        # The ids come over the network; one outside the embedding would end the thread for everybody.
        if not token_ids:
            raise InvalidMessageError(f"{what}: there are none")
        if min(token_ids) < 0 or max(token_ids) >= self._forward.vocabulary_size:
            raise InvalidMessageError(
                f"{what}: ids must lie in [0, {self._forward.vocabulary_size}), "
                f"got {min(token_ids)} to {max(token_ids)}"
            )
