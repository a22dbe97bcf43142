"""What is measured at start, because flags have lied: the kind of log-probabilities, and labels of weight versions.

Two tokens a and b get logit biases so large that nothing else can be sampled: a distribution of two outcomes that is
known whatever the model is, P(a) = sigmoid((bias_a - bias_b + s_a - s_b) / T), with s their log-probabilities from
scoring. A raw log-probability is s of the sampled token at every temperature; a processed one is that of the outcome.
"""

import dataclasses
import math
from typing import Any

from hetero_rl.errors import BackendError, EngineError
from hetero_rl.worker.engines.vllm.client import Client
from hetero_rl.worker.engines.vllm.requests import scored_log_probs, scoring_parameters

__all__ = ["Observation", "judge_mode", "measure_labels", "measure_mode"]

_BIASES = (60.0, 59.0)
_TEMPERATURES = (1.0, 0.5)
_TOLERANCE = 0.05
_SALT = "measured at start"
_LABEL = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One sampled token: which of the two, at what temperature, and what was reported of it."""

    outcome: int
    temperature: float
    reported: float


def judge_mode(observations: list[Observation], scores: tuple[float, float]) -> str:
    """Which log-probabilities explain what was reported: "raw" or "processed".

    Args:
        observations: At two temperatures or more.
        scores: Raw log-probabilities of both tokens.

    Raises:
        EngineError: What was reported is neither, so it is of no use.
    """
    raw = [abs(seen.reported - scores[seen.outcome]) for seen in observations]
    processed = [abs(seen.reported - _processed(seen, scores)) for seen in observations]
    for mode, differences in (("processed", processed), ("raw", raw)):
        # NaN is not within any tolerance.
        if all(difference <= _TOLERANCE for difference in differences):
            return mode
    raise EngineError(
        f"vLLM reports log-probabilities that are neither raw (off by {raw}) nor processed (off by {processed}); they would be "
        "trained on, so this engine is not used"
    )


def _processed(seen: Observation, scores: tuple[float, float]) -> float:
    gap = (_BIASES[0] - _BIASES[1] + scores[0] - scores[1]) / seen.temperature
    return -math.log1p(math.exp(-gap if seen.outcome == 0 else gap))


async def measure_mode(client: Client) -> str:
    """Which log-probabilities this engine reports: "raw" or "processed"."""
    prompt, tokens = [1, 2, 3], (4, 5)
    scores = [await _score(client, [*prompt, token]) for token in tokens]
    observations = []
    for temperature in _TEMPERATURES:
        output = await client.request(prompt, _biased(tokens, temperature), salt=_SALT)
        completion = output.outputs[0]
        token = completion.token_ids[0]
        if token not in tokens:
            raise EngineError(f"vLLM sampled token {token} although the logit biases leave only {tokens}")
        reported = completion.logprobs.logprobs[completion.logprobs.start_indices[0]]
        observations.append(Observation(tokens.index(token), temperature, reported))
    return judge_mode(observations, (scores[0], scores[1]))


async def measure_labels(client: Client) -> bool:
    """Whether an output says which weights sampled it, after the weights were labelled; labels the weights as version 0."""
    await client.call("labelling the weights", client.llm.update_weight_version(str(_LABEL)))
    output = await client.request([1, 2, 3], {**_biased((4, 5), 1.0), "max_tokens": 2}, salt=_SALT)
    completion = output.outputs[0]
    spans = [(span.start, span.end, span.version) for span in completion.weight_versions or ()]
    return spans == [(0, len(completion.token_ids), str(_LABEL))]


async def _score(client: Client, tokens: list[int]) -> float:
    output = await client.request(tokens, scoring_parameters(), salt=_SALT)
    scores = scored_log_probs(output.prompt_logprobs, tokens)
    if not math.isfinite(scores[-1]):
        raise BackendError(f"vLLM scores a plain prompt as {scores[-1]}")
    return scores[-1]


def _biased(tokens: tuple[int, int], temperature: float) -> dict[str, Any]:
    return {
        "temperature": temperature,
        "seed": 0,
        "max_tokens": 1,
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
        "ignore_eos": True,
        "logit_bias": dict(zip(tokens, _BIASES, strict=True)),
    }
