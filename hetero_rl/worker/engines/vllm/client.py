"""Requests to a running vLLM, one call each; what it raises becomes this package's errors."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hetero_rl.errors import BackendError, EngineError, InvalidMessageError
from hetero_rl.worker.engines.vllm.library import Library

__all__ = ["Client", "PausedError"]


_CALL_SECONDS = 600.0
"""Most seconds of a call that concerns the whole engine, loading weights included."""
_LOOK_SECONDS = 0.5
"""How often a call under way looks whether the engine still lives."""


class PausedError(BackendError):
    """A request was refused because the engine pauses; it may be sent again afterwards."""


class Client:
    """An `AsyncLLM` and its request numbers.

    Args:
        library: The installed vLLM.
        llm: The running engine.
    """

    def __init__(self, library: Library, llm: Any) -> None:
        self._library = library
        self._numbers = itertools.count()
        self.llm = llm

    async def request(
        self,
        prompt: Sequence[int],
        parameters: dict[str, Any],
        *,
        salt: str,
        on_tokens: Callable[[int], None] | None = None,
    ) -> Any:
        """Sends a request and returns its last output; cancelling it aborts the request.

        Args:
            prompt: Token ids.
            parameters: Arguments of `SamplingParams`.
            salt: Keeps cached blocks of other weights from being used.
            on_tokens: Called with the number of tokens that have come since the last call.

        Raises:
            EngineError: The engine is dead.
            PausedError: It pauses; send the request again later.
            InvalidMessageError: It does not take this request.
            BackendError: It failed this request.
        """
        sampling = self._library.sampling_class(output_kind=self._library.cumulative, **parameters)
        tokens, last = 0, None
        outputs = self.llm.generate(
            {"prompt_token_ids": list(prompt), "cache_salt": salt},
            sampling,
            f"hetero-rl-{next(self._numbers)}",
        )
        try:
            async for output in outputs:
                last = output
                if on_tokens is not None:
                    on_tokens(len(output.outputs[0].token_ids) - tokens)
                    tokens = len(output.outputs[0].token_ids)
        except Exception as error:
            raise self._translated(error) from error
        if last is None:
            raise BackendError("vLLM ended a request without any output")
        return last

    async def call(self, what: str, awaitable: Awaitable[Any]) -> Any:
        """Awaits a call that concerns the whole engine; whatever goes wrong with it leaves an unknown state.

        Raises:
            EngineError: It failed or took too long, or the engine's process died meanwhile.
        """
        pending = asyncio.ensure_future(awaitable)
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                alive = await self._outlived(pending)
        except TimeoutError as error:
            raise EngineError(f"{what} is not done in vLLM after {_CALL_SECONDS:.0f} s") from error
        finally:
            pending.cancel()
        if not alive:
            raise EngineError(f"{what} was under way when vLLM's engine process died")
        try:
            return pending.result()
        except Exception as error:
            raise EngineError(f"{what} failed in vLLM: {_told(error)}") from error

    async def _outlived(self, pending: "asyncio.Future[Any]") -> bool:
        """Waits for the end of a call; whether it came. vLLM does not end the calls that wait for a process that died."""
        while not pending.done():
            await asyncio.wait({pending}, timeout=_LOOK_SECONDS)
            if not pending.done() and getattr(self.llm, "errored", False):
                return False
        return True

    def _translated(self, error: Exception) -> Exception:
        library = self._library
        if isinstance(error, library.dead_error) or getattr(self.llm, "errored", False):
            return EngineError(
                f"vLLM's engine process died: {_told(error)}; its own words are in this worker's log"
            )
        if library.retryable_error is not None and isinstance(error, library.retryable_error):
            return PausedError(f"vLLM pauses: {_told(error)}")
        if isinstance(error, library.refusals):
            return InvalidMessageError(f"vLLM does not take this request: {_told(error)}")
        return BackendError(f"vLLM failed this request: {_told(error)}")


def _told(error: BaseException) -> str:
    cause = error.__cause__
    own = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{own} ({type(cause).__name__}: {cause})" if cause is not None else own
