"""An engine in this process as a subject: an event loop on a thread, called from outside.

caller ──run(coroutine)──► loop thread: engine.generate, score, load_weights ──► result
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from hetero_rl.calibration.columns import Floats
from hetero_rl.calibration.subject import Sampled
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import (
    Capabilities,
    GenerateWork,
    NumericsRecord,
    Purpose,
    SamplingParameters,
    ScoreWork,
)
from hetero_rl.worker.engine import Engine

__all__ = ["EngineSubject", "split_scores"]

T = TypeVar("T")


class EngineSubject:
    """Drives an engine without a hub.

    Args:
        name: What reports call it.
        backend: Backend that it stands for.
        engine: Not started yet.
        stop_token_ids: A completion ends with the first of these.
    """

    def __init__(self, name: str, backend: str, engine: Engine, stop_token_ids: Sequence[int]) -> None:
        self.name = name
        self.backend = backend
        self._engine = engine
        self._stops = tuple(stop_token_ids)
        self._version = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"calibrate-{name}", daemon=True)
        self._thread.start()
        self._run(engine.start())

    @property
    def numerics(self) -> NumericsRecord:
        """See `Subject`."""
        return self._engine.numerics()

    @property
    def capabilities(self) -> Capabilities:
        """See `Subject`."""
        return self._engine.capabilities()

    def load(self, version: int, snapshot: Snapshot) -> None:
        """See `Subject`."""
        seen: set[int] = set()
        once = []
        for name, tensor in snapshot.tensors.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                once.append((name, tensor))
        self._run(self._engine.load_weights(once, version))
        self._version = version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Sampled]:
        """See `Subject`."""
        works = [
            GenerateWork(
                group_id=f"calibrate-{number}",
                purpose=Purpose.EVALUATION,
                prompt_token_ids=int32_column(prompt),
                sample_indices=tuple(range(group_size)),
                sampling=SamplingParameters(
                    max_new_tokens=max_new_tokens,
                    stop_token_ids=self._stops,
                    temperature=temperature,
                    seed=seed + number,
                ),
            )
            for number, prompt in enumerate(prompts)
        ]

        async def all_of_them() -> list[Any]:
            return list(await asyncio.gather(*map(self._engine.generate, works)))

        found = self._run(all_of_them())
        return [
            Sampled(tuple(prompt), tuple(one.token_ids), np.asarray(one.log_probs, dtype=np.float64))
            for prompt, completions in zip(prompts, found, strict=True)
            for one in completions
        ]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Floats]:
        """See `Subject`."""
        work = ScoreWork(
            score_id="calibrate",
            lengths=tuple(len(sequence) for sequence in sequences),
            token_ids=int32_column(token for sequence in sequences for token in sequence),
            weight_version=self._version,
        )
        return split_scores(self._run(self._engine.score(work)), work.lengths)

    def close(self) -> None:
        """See `Subject`."""
        self._run(self._engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def split_scores(column: bytes, lengths: Sequence[int]) -> list[Floats]:
    """A float32 column of L - 1 numbers for each sequence of L tokens, as one array for each."""
    values = np.frombuffer(column, dtype="<f4").astype(np.float64)
    ends = np.cumsum([length - 1 for length in lengths])
    return [np.asarray(part) for part in np.split(values, ends[:-1])]
