"""Scorers, as they run inside a grader process: payload and completion in, reward out.

No scorer here evaluates model text. Some of reasoning-gym's own do (they call `eval`, or sympy's `parse_expr`, which
calls it). Those that do so only when the text is not the exact answer see it only when it is; the others are refused.
Mathematical answers are read by `math_scorer`.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hetero_rl.errors import TaskError
from hetero_rl.tasks.payload import decode_payload

__all__ = ["EXACT_ANSWERS", "REFUSED_DATASETS", "Scorer", "extract_answer", "load_scorer"]

Scorer = Callable[[bytes, str], float]
"""From payload and completion to reward, 0 to 1."""

_EVALUATES = "its scorer hands the model's text to an evaluator"
REFUSED_DATASETS: Mapping[str, str] = {
    "composite": "it mixes other tasks; name one of them",
    "countdown": _EVALUATES,
    "intermediate_integration": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "puzzle24": _EVALUATES,
    "simple_integration": _EVALUATES,
}
"""reasoning-gym tasks that cannot be graded, with the reason."""

EXACT_ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Collection[str]]] = {
    "binary_matrix": lambda item: (item["answer"],),
    "n_queens": lambda item: item["metadata"]["valid_answers"],
    "spiral_matrix": lambda item: (item["answer"].strip(),),
    "string_insertion": lambda item: (item["answer"],),
}
"""Tasks whose own scorer evaluates any text but an exact answer: it sees exact answers only, other text earns 0."""

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def load_scorer(specification: Mapping[str, Any]) -> Scorer:
    """The scorer that `Task.scorer` names; raises TaskError for an unknown kind."""
    match specification:
        case {"kind": "reasoning-gym", "dataset": str(dataset), "options": dict(options)}:
            return _reasoning_gym_scorer(dataset, options)
        case {"kind": "math-verify"}:
            return _math_verify_scorer()
    raise TaskError(f"there is no scorer for {specification!r}")


def extract_answer(completion: str) -> str:
    """The text in the last <answer> tag pair, or all of the completion; stripped."""
    tagged = _TAGGED.findall(completion)
    return (tagged[-1] if tagged else completion).strip()


def _reasoning_gym_scorer(dataset: str, options: Mapping[str, Any]) -> Scorer:
    import reasoning_gym

    if dataset in REFUSED_DATASETS:
        raise TaskError(f"reasoning-gym task {dataset!r} cannot be graded: {REFUSED_DATASETS[dataset]}")
    generator = reasoning_gym.create_dataset(dataset, seed=0, size=1, **options)
    exact = EXACT_ANSWERS.get(dataset)

    def score(payload: bytes, completion: str) -> float:
        answer, item = extract_answer(completion), decode_payload(payload)
        if exact is not None and answer not in exact(item):
            return 0.0
        return float(generator.score_answer(answer, item))

    return score


def _math_verify_scorer() -> Scorer:
    from hetero_rl.tasks.math_scorer import math_scorer

    compare = math_scorer()

    def score(payload: bytes, completion: str) -> float:
        return compare(str(decode_payload(payload)["answer"]), extract_answer(completion))

    return score
