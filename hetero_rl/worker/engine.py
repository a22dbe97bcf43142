"""The engine seam: what a worker needs of an inference engine, whatever its vendor.

An engine generates token ids with the log-probability of each under the distribution it was sampled from, scores
given tokens, and replaces its weights in place. `tests/contract/test_engine.py` is the suite every engine passes.

    lease loop ──generate()──► engine ──► completions, one await per group
    weight loop ──load_weights()──► engine: pauses between two tokens, swaps, goes on (or drains first)

All methods run on the worker's event loop; an engine that blocks does so on a thread of its own.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hetero_rl.wire.columns import Float32Bytes
from hetero_rl.wire.messages import (
    Capabilities,
    FinishReason,
    GenerateWork,
    ModelDigests,
    NumericsRecord,
    ScoreWork,
)

if TYPE_CHECKING:
    import torch

    from hetero_rl.weights.low_rank import AdapterTensors

__all__ = ["Completion", "CompletionSpan", "EarlyWeights", "Engine", "EngineSettings"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What an engine is started with."""

    model_dir: Path
    """Hugging Face directory: configuration and tokenizer; weights may be missing and come from the hub."""
    dtype: str
    """Data type of weights and activations: "float32", "bfloat16" or "float16"."""
    max_concurrent_sequences: int
    threads: int = 0
    """CPU threads; 0 leaves the engine's choice."""
    drain_before_update: bool = False
    """Whether running completions end before new weights are loaded."""
    device: str = ""
    """Device such as "cuda:0", for engines that take one; empty leaves the engine's choice."""
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Options by the engine's own names, from the backend's profile and quirks; unknown ones are refused by the engine."""
    shared_dir: Path | None = None
    """Directory that all nodes of an engine see, for an engine that spreads itself over several."""
    emulate: str = ""
    """Numerics of another chip to imitate, for engines that can; empty computes as the device does."""


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionSpan:
    """Tokens [start, end) of a completion, sampled by one weight version."""

    start: int
    end: int
    weight_version: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion, stop token included."""

    sample_index: int
    token_ids: Sequence[int]
    log_probs: Sequence[float] | None
    """One for each token, float32 precision; None for greedy work."""
    spans: tuple[CompletionSpan, ...]
    finish_reason: FinishReason


class EarlyWeights(Protocol):
    """Takes tensors of a version one by one, while others of it are still on their way; what serves stays as it is.

    Not called while `Engine.load_weights` runs. One call at a time, on any thread.
    """

    def begin(self, version: int) -> None:
        """Tensors of this version follow. Those that came before, of whatever version, will not be loaded."""

    def take(self, name: str, tensor: "torch.Tensor") -> None:
        """A verified tensor, in the memory in which `load_weights` will be given it; the caller's again on return."""


class Engine(ABC):
    """An inference engine with replaceable weights.

    Constraints on every implementation (the contract suite checks them):

    - `generate` MUST return one completion per sample index, in that order, each of 1 to `max_new_tokens` tokens, the
      stop token included, with log-probabilities of the distribution sampled from, finite and not above 0.
    - `score` MUST agree with the log-probabilities that `generate` reported for the same tokens and weights.
    - After `load_weights(v)` returned, tokens MUST come from those weights and their spans say v; loading A, B, A again
      MUST score exactly as A did.
    - `load_weights` MUST leave the old weights serving when it raises `InvalidMessageError` (names or shapes that are
      not the model's), and MUST raise `EngineError` when the state is unknown.
    - Where `Capabilities.adapters` is true, `load_adapted` MUST keep the same promises, and score as the base with the
      adapters added does, however many adapters came before: nothing may add up.
    - Cancelling a `generate` MUST free its place in the engine.
    - `EngineError` MUST mean that this engine is of no use any more; what is wrong with one piece of work alone is an
      `InvalidMessageError` or a plain `BackendError`, and the engine goes on.
    """

    @abstractmethod
    async def start(self) -> None:
        """Loads the model; raises EngineError naming what is missing."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this engine can do, measured at start."""

    @abstractmethod
    def numerics(self) -> NumericsRecord:
        """What its numbers depend on."""

    @abstractmethod
    def model_digests(self) -> ModelDigests:
        """Digests of the loaded configuration and tokenizer."""

    @abstractmethod
    async def generate(self, work: GenerateWork) -> Sequence[Completion]:
        """Samples the completions of one lease."""

    @abstractmethod
    async def score(self, work: ScoreWork) -> Float32Bytes:
        """Log-probabilities of given tokens: L - 1 for each sequence of L tokens, at temperature 1."""

    @abstractmethod
    async def load_weights(self, tensors: "Iterable[tuple[str, torch.Tensor]]", version: int) -> None:
        """Replaces the weights; names are those of the Hugging Face checkpoint, tied tensors given once.

        The tensors given are the caller's again when this returns.

        Running completions go on with the new weights from their next token, their caches recomputed, or end before,
        as `EngineSettings.drain_before_update` says.
        """

    async def load_adapted(
        self, base: "Iterable[tuple[str, torch.Tensor]]", adapters: "AdapterTensors", version: int
    ) -> None:
        """Replaces the weights by a base and adapters on it; otherwise as `load_weights`.

        Called only where `Capabilities.adapters` is true. Here the adapters are added to the base, each time anew, which every
        engine whose `load_weights` takes plain weights can do; one that computes with them beside the base replaces this.

        Args:
            base: The frozen model.
            adapters: On linear layers of the base.
            version: The version of both.
        """
        from hetero_rl.weights.low_rank import merged_tensors

        await self.load_weights(merged_tensors(base, adapters, self.adapted_type), version)

    @property
    def adapted_type(self) -> "torch.dtype | None":
        """Type to which `load_adapted` rounds W + s B A, best the one computed in; None is that of the base as published."""
        return None

    @property
    def early_weights(self) -> EarlyWeights | None:
        """Where tensors of the version that is loaded next may be given to before `load_weights`, which still gets all of them.

        None when that would save nothing.
        """
        return None

    @property
    @abstractmethod
    def loaded_version(self) -> int:
        """The weight version that serves now; 0 before the first `load_weights`."""

    @property
    @abstractmethod
    def unfinished_sequences(self) -> int:
        """Completions that were ordered and have not ended, those that wait for room included."""

    @property
    @abstractmethod
    def generated_tokens(self) -> int:
        """Completion tokens generated since start."""

    @property
    @abstractmethod
    def busy_seconds(self) -> float:
        """Seconds spent generating since start."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the engine; running work is cancelled."""
