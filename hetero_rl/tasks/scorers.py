"""Scorers, as they run inside a grader process: payload and completion in, reward out.

No scorer evaluates model text. Of reasoning-gym's own scorers some do (they call `eval`, or sympy's `parse_expr`,
which calls it): those that only need a plain literal or arithmetic see the text after it was matched, as a whole,
against an alphabet in which no name, call or attribute can be written; the others are refused. math-verify reads
LaTeX with a grammar, and plain arithmetic only where a pattern of digits and operators matched.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from hetero_rl.errors import TaskError
from hetero_rl.tasks.payload import decode_payload

__all__ = ["ANSWER_ALPHABETS", "REFUSED_DATASETS", "Scorer", "extract_answer", "load_scorer"]

Scorer = Callable[[bytes, str], float]
"""From payload and completion to reward, 0 to 1."""

_EVALUATES_NAMES = "it hands the model's text to sympy's parse_expr, which evaluates it, and its answers need names and calls"
REFUSED_DATASETS: Mapping[str, str] = {
    "composite": "it mixes other tasks; name one of them",
    "intermediate_integration": _EVALUATES_NAMES,
    "polynomial_multiplication": _EVALUATES_NAMES,
    "simple_integration": _EVALUATES_NAMES,
}
"""reasoning-gym tasks that cannot be graded, with the reason."""

# Without powers: a few characters would ask for a number that fills the memory.
_ARITHMETIC = re.compile(r"(?![\s\S]*\*\s*\*)[0-9\s+\-*/()]{1,256}")
ANSWER_ALPHABETS: Mapping[str, re.Pattern[str]] = {
    "binary_matrix": re.compile(r"[0-9\s\[\],]*"),
    "countdown": _ARITHMETIC,
    "n_queens": re.compile(r"[Q_\s\[\],'\"]*"),
    "puzzle24": _ARITHMETIC,
    "spiral_matrix": re.compile(r"[0-9\s\-\[\],]*"),
    "string_insertion": re.compile(r"[A-E\s\[\],'\"]*"),
}
"""Scorers that evaluate a literal or arithmetic, and the whole text they may see. Anything else earns 0."""

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
    alphabet = ANSWER_ALPHABETS.get(dataset)

    def score(payload: bytes, completion: str) -> float:
        answer = extract_answer(completion)
        if alphabet is not None and alphabet.fullmatch(answer) is None:
            return 0.0
        return float(generator.score_answer(answer, decode_payload(payload)))

    return score


def _math_verify_scorer() -> Scorer:
    import logging

    from math_verify import parse, verify

    # It says once for every process that its own timer is off; the grader process has a timer.
    logging.disable(logging.WARNING)

    def score(payload: bytes, completion: str) -> float:
        reference = str(decode_payload(payload)["answer"])
        answer = extract_answer(completion)
        if answer == reference:
            return 1.0
        wanted = parse(f"${reference}$", parsing_timeout=None)
        given = parse(answer, parsing_timeout=None)
        return 1.0 if wanted and given and verify(wanted, given, timeout_seconds=None) else 0.0

    return score
