"""An engine whose model is a hash: real sampling from a real distribution, without torch and without arithmetic.

It obeys every rule of the `Engine` interface, at thousands of tokens per second on any machine, so it tests what lies
around an engine: worker loops, hub, weight loading, a kill in the middle. Its numbers are the same everywhere.

The model: with h(0) = BLAKE2b(weights) and h(t+1) = BLAKE2b(h(t), token t), the probability of token v after t tokens is
proportional to 1 + byte (v mod 64) of h(t). Any change of a weight or of a token before changes everything after it.

    generate() ──► wait for the gate ──► wait for places ──► one token per row ──► sleep ──► ... ──► places given back
    load_weights() ── in flight: between two sleeps. drain: admission closes, running ones end, then the swap

The gate: a file, named by the variable HETERO_RL_SCRIPTED_GATE, with the number of groups that this engine may begin. Those
beyond it stay unfinished until the number grows, so that a test of processes finds a state that lasts. No variable, no gate.
"""

import asyncio
import dataclasses
import hashlib
import json
import math
import os
import random
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from hetero_rl import __version__
from hetero_rl.errors import BackendError, EngineError, InvalidMessageError
from hetero_rl.weights.model_files import model_digests
from hetero_rl.wire.columns import Float32Bytes, float32_column, int32_view
from hetero_rl.wire.messages import (
    Capabilities,
    FinishReason,
    GenerateWork,
    ModelDigests,
    NumericsRecord,
    SamplingParameters,
    ScoreWork,
    WeightEncoding,
)
from hetero_rl.worker.engine import Completion, CompletionSpan, Engine, EngineSettings

if TYPE_CHECKING:
    import torch

__all__ = ["ScriptedEngine"]

GATE_VARIABLE = "HETERO_RL_SCRIPTED_GATE"
_GATE_SECONDS = 0.02  # from one look at the gate to the next
_DIGEST_BYTES = 64
_MAX_SEQUENCE_TOKENS = 2**20


class ScriptedEngine(Engine):
    """A deterministic engine for tests of everything around engines.

    Args:
        settings: As for every engine; `config.json` in the model directory gives `vocab_size`.
        token_seconds: Pause after each decoding step, to make completions last.
    """

    def __init__(self, settings: EngineSettings, token_seconds: float = 0.0) -> None:
        self._settings = settings
        self._token_seconds = token_seconds
        self._vocabulary_size = 0
        self._digests: ModelDigests
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._weights = b""
        self._version = 0
        self._unfinished = 0
        self._generated = 0
        self._busy = 0.0
        self._free = settings.max_concurrent_sequences
        self._changed = asyncio.Condition()
        self._draining = False
        self._closed = False
        gate = os.environ.get(GATE_VARIABLE)
        self._gate = Path(gate) if gate else None
        self._begun = 0

    @override
    async def start(self) -> None:
        try:
            config = json.loads((self._settings.model_dir / "config.json").read_bytes())
            self._vocabulary_size = int(config["vocab_size"])
            self._digests = model_digests(self._settings.model_dir)
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"cannot read the model in {self._settings.model_dir}: {error}") from error

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_concurrent_sequences=self._settings.max_concurrent_sequences,
            max_sequence_tokens=_MAX_SEQUENCE_TOKENS,
            scoring=True,
            in_flight_update=not self._settings.drain_before_update,
            processed_log_probs=False,
            adapters=True,
            weight_encodings=(WeightEncoding.FULL_RAW,),
        )

    @override
    def numerics(self) -> NumericsRecord:
        return NumericsRecord(
            engine="scripted",
            engine_version=__version__,
            torch_version="",
            device_vendor="cpu",
            device_name="any",
            driver_version="",
            runtime_version="",
            data_type=self._settings.dtype,
            attention_backend="none",
            log_probs_mode="raw",
        )

    @override
    def model_digests(self) -> ModelDigests:
        return self._digests

    @override
    async def generate(self, work: GenerateWork) -> Sequence[Completion]:
        self._check_serving()
        if not work.sampling.portable and work.sampling.temperature != 0:
            raise InvalidMessageError(
                f"group {work.group_id!r}: the scripted engine samples at temperature 1, or greedily, without top_p and "
                f"top_k; got {work.sampling}"
            )
        prompt = self._checked_tokens(work.group_id, work.prompt_token_ids)
        rows = [_Row(index, prompt, work.sampling) for index in work.sample_indices]
        self._unfinished += len(rows)
        try:
            await self._pass_gate()
            for start in range(0, len(rows), self._settings.max_concurrent_sequences):
                share = rows[start : start + self._settings.max_concurrent_sequences]
                async with self._places(len(share)):
                    await self._decode(share)
        finally:
            self._unfinished -= sum(row.finish_reason is None for row in rows)
        return [row.completion() for row in sorted(rows, key=lambda row: row.sample_index)]

    @override
    async def score(self, work: ScoreWork) -> Float32Bytes:
        self._check_serving()
        if work.weight_version != self._version:
            raise BackendError(
                f"scoring was wanted under version {work.weight_version}, version {self._version} is loaded"
            )
        token_ids = self._checked_tokens(work.score_id, work.token_ids)
        scores: list[float] = []
        start = 0
        for length in work.lengths:
            state = _state(self._weights, token_ids[start : start + 1])
            for token in token_ids[start + 1 : start + length]:
                scores.append(_log_prob(state, token, self._vocabulary_size))
                state = _next_state(state, token)
            start += length
        return float32_column(scores)

    @override
    async def load_weights(self, tensors: "Iterable[tuple[str, torch.Tensor]]", version: int) -> None:
        given = list(tensors)
        shapes = {name: tuple(tensor.shape) for name, tensor in given}
        if not shapes or len(shapes) != len(given) or shapes != (self._shapes or shapes):
            raise InvalidMessageError(
                f"version {version} has other tensor names or shapes than the first one; nothing was loaded"
            )
        digest = hashlib.sha256()
        for name, tensor in sorted(given, key=itemgetter(0)):
            digest.update(name.encode())
            digest.update(tensor.detach().double().cpu().numpy().tobytes())
        async with self._changed:
            self._draining = self._settings.drain_before_update
            if self._draining:
                await self._changed.wait_for(lambda: self._free == self._settings.max_concurrent_sequences)
            self._shapes, self._weights, self._version = shapes, digest.digest(), version
            self._draining = False
            self._changed.notify_all()

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
        return self._generated

    @property
    @override
    def busy_seconds(self) -> float:
        return self._busy

    @override
    async def close(self) -> None:
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def _decode(self, rows: Sequence["_Row"]) -> None:
        running = list(rows)
        while running:
            started = time.perf_counter()
            for row in running:
                row.advance(self._weights, self._version, self._vocabulary_size)
            self._generated += len(running)
            self._unfinished -= sum(row.finish_reason is not None for row in running)
            running = [row for row in running if row.finish_reason is None]
            await self._pause()
            self._busy += time.perf_counter() - started
            self._check_serving()

    async def _pause(self) -> None:
        """Between two tokens everybody else has their turn, also at 0 seconds."""
        await asyncio.sleep(self._token_seconds)

    async def _pass_gate(self) -> None:
        """Returns when one more group may begin; looks at the file, which another process writes."""
        while self._gate is not None and self._begun >= _number_in(self._gate):
            await asyncio.sleep(_GATE_SECONDS)
            self._check_serving()
        self._begun += 1

    @asynccontextmanager
    async def _places(self, wanted: int) -> AsyncGenerator[None, None]:
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._closed or (self._free >= wanted and not self._draining)
            )
            self._check_serving()
            self._free -= wanted
        try:
            yield
        finally:
            self._free += wanted
            async with self._changed:
                self._changed.notify_all()

    def _check_serving(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        if self._version == 0:
            raise BackendError("no weights are loaded yet; call load_weights before generate or score")

    def _checked_tokens(self, name: str, column: bytes) -> list[int]:
        token_ids = int32_view(column).tolist()
        if not token_ids or min(token_ids) < 0 or max(token_ids) >= self._vocabulary_size:
            raise InvalidMessageError(f"{name!r}: there must be tokens, each in [0, {self._vocabulary_size})")
        return token_ids


@dataclasses.dataclass(slots=True)
class _Row:
    """One completion on its way."""

    sample_index: int
    prompt: Sequence[int]
    sampling: SamplingParameters
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    spans: list[CompletionSpan] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    _noise: random.Random | None = None
    _weights: bytes = b""
    _state: bytes = b""

    def advance(self, weights: bytes, version: int, vocabulary_size: int) -> None:
        """Samples one token."""
        if weights != self._weights:
            self._weights, self._state = weights, _state(weights, [*self.prompt, *self.tokens])
        token = self._draw(vocabulary_size)
        self.log_probs.append(_log_prob(self._state, token, vocabulary_size))
        self.tokens.append(token)
        self._state = _next_state(self._state, token)
        count = len(self.tokens)
        if self.spans and self.spans[-1].weight_version == version:
            self.spans[-1] = dataclasses.replace(self.spans[-1], end=count)
        else:
            self.spans.append(CompletionSpan(count - 1, count, version))
        if token in self.sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif count == self.sampling.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH

    def completion(self) -> Completion:
        """The completion as the interface has it."""
        return Completion(
            sample_index=self.sample_index,
            token_ids=self.tokens,
            log_probs=None if self.sampling.temperature == 0 else self.log_probs,
            spans=tuple(self.spans),
            finish_reason=self.finish_reason or FinishReason.ABORTED,
        )

    def _draw(self, vocabulary_size: int) -> int:
        tokens = range(vocabulary_size)
        if self.sampling.temperature == 0:
            return max(tokens, key=lambda token: _weight(self._state, token))
        if self._noise is None:
            seed = None if self.sampling.seed is None else f"{self.sampling.seed}:{self.sample_index}"
            self._noise = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - repeatable on purpose
        weights = [_weight(self._state, token) for token in tokens]
        return self._noise.choices(tokens, weights)[0]


def _number_in(file: Path) -> int:
    """The number in a file; 0 while there is none."""
    text = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    return int(text or 0)


def _state(weights: bytes, token_ids: Iterable[int]) -> bytes:
    state = hashlib.blake2b(weights, digest_size=_DIGEST_BYTES).digest()
    for token in token_ids:
        state = _next_state(state, token)
    return state


def _next_state(state: bytes, token: int) -> bytes:
    return hashlib.blake2b(state + token.to_bytes(4, "little"), digest_size=_DIGEST_BYTES).digest()


def _weight(state: bytes, token: int) -> int:
    return 1 + state[token % _DIGEST_BYTES]


def _log_prob(state: bytes, token: int, vocabulary_size: int) -> float:
    cycles, rest = divmod(vocabulary_size, _DIGEST_BYTES)
    total = vocabulary_size + cycles * sum(state) + sum(state[:rest])
    return math.log(_weight(state, token) / total)
