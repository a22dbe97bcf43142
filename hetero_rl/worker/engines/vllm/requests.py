"""What is asked of vLLM and what comes back. Pure functions.

Every completion is a request of its own, with a seed of its own: so a group gives the same tokens whole, in two leases,
or among others. A completion whose weights change on the way may need several requests, one for each segment; the
next one's prompt is the prompt and all tokens so far.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_rl.errors import BackendError
from hetero_rl.wire.messages import FinishReason, SamplingParameters
from hetero_rl.worker.engine import Completion, CompletionSpan

__all__ = [
    "Progress",
    "decoding_parameters",
    "request_seed",
    "scored_log_probs",
    "scoring_parameters",
]

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": None}
"""By what vLLM says; a completion that a pause has stopped goes on."""


@dataclasses.dataclass(slots=True)
class Progress:
    """One completion on its way."""

    sample_index: int
    greedy: bool
    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    spans: list[CompletionSpan] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, output: Any, version: int, *, labelled: bool) -> None:
        """Adds the last output of a request.

        Args:
            output: A `CompletionOutput` with every token of the request.
            version: The weights that served when the request was sent.
            labelled: Whether the output says itself which weights sampled which tokens.

        Raises:
            BackendError: It does not hold one log-probability for each token, its labels leave a gap, or it ended for a
                reason that no completion should end for.
        """
        if output.finish_reason not in _FINISH_REASONS:
            raise BackendError(f"vLLM ended a completion with {output.finish_reason!r}")
        tokens = list(output.token_ids)
        offset = len(self.token_ids)
        self.token_ids.extend(tokens)
        if not self.greedy:
            self.log_probs.extend(_sampled_log_probs(output.logprobs, tokens))
        for start, end, label in _labels(output, len(tokens), version, labelled=labelled):
            self._add_span(offset + start, offset + end, label)
        self.finish_reason = _FINISH_REASONS[output.finish_reason]

    def _add_span(self, start: int, end: int, version: int) -> None:
        if self.spans and self.spans[-1].weight_version == version:
            start = self.spans.pop().start
        self.spans.append(CompletionSpan(start, end, version))

    def completion(self) -> Completion:
        """The completion as the interface has it."""
        return Completion(
            sample_index=self.sample_index,
            token_ids=self.token_ids,
            log_probs=None if self.greedy else self.log_probs,
            spans=tuple(self.spans),
            finish_reason=self.finish_reason or FinishReason.ABORTED,
        )


def request_seed(seed: int | None, sample_index: int, offset: int) -> int | None:
    """A seed in [0, 2^63) of the segment of a completion that begins after `offset` tokens."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}:{sample_index}:{offset}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def decoding_parameters(sampling: SamplingParameters, *, seed: int | None, max_tokens: int) -> dict[str, Any]:
    """Arguments of `SamplingParams` for a completion: the sampled token's log-probability alone, in flat lists."""
    return {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        # The stop tokens of the work decide, not what the checkpoint calls its end.
        "ignore_eos": True,
        "max_tokens": max_tokens,
        "logprobs": None if sampling.temperature == 0 else 0,
        "flat_logprobs": True,
        "detokenize": False,
    }


def scoring_parameters() -> dict[str, Any]:
    """Arguments of `SamplingParams` that make a prompt's tokens be scored; one token is sampled and thrown away."""
    return {
        "n": 1,
        "temperature": 1.0,
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
        "ignore_eos": True,
    }


def scored_log_probs(prompt_log_probs: Any, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of every token but the first; raises BackendError when they are others than asked for."""
    return _sampled_log_probs(prompt_log_probs, token_ids[1:], skipped=1)


def _sampled_log_probs(flat: Any, token_ids: Sequence[int], skipped: int = 0) -> list[float]:
    """The log-probability of each given token, the first entry of each position.

    Args:
        flat: `FlatLogprobs`.
        token_ids: What they must belong to.
        skipped: Positions at the beginning that have no entry.
    """
    if not token_ids:
        return []
    starts = list(flat.start_indices)[skipped:] if flat is not None else []
    if len(starts) != len(token_ids):
        raise BackendError(f"vLLM gave {len(starts)} log-probabilities for {len(token_ids)} tokens")
    entries = list(flat.token_ids)
    if any(entries[start] != token for start, token in zip(starts, token_ids, strict=True)):
        raise BackendError("vLLM gave log-probabilities of other tokens than those that it sampled")
    values = list(flat.logprobs)
    # In float32, the log-probability of a certain token may come out a rounding above 0.
    return [min(0.0, values[start]) for start in starts]


def _labels(output: Any, tokens: int, version: int, *, labelled: bool) -> list[tuple[int, int, int]]:
    """(start, end, weight version) of the tokens of one request."""
    if not tokens:
        return []
    if not labelled:
        return [(0, tokens, version)]
    spans = [(int(span.start), int(span.end), int(span.version)) for span in output.weight_versions or ()]
    spans = [span for span in spans if span[0] < span[1]]
    ends = [0, *(end for _, end, _ in spans)]
    if [start for start, _, _ in spans] != ends[:-1] or ends[-1] != tokens:
        raise BackendError(f"vLLM labelled the tokens {spans} of a completion of {tokens} tokens")
    return spans


def stream_interval(features_place: str, tokens: int) -> Mapping[str, int]:
    """The argument that spaces outputs, where requests carry it."""
    return {"stream_interval": tokens} if features_place == "request" else {}
