"""Grades a mathematical answer in free text against a reference, without evaluating anything that a model wrote.

    reference and answer are arithmetic ──► `arithmetic`, exact
    anything else that is LaTeX         ──► math-verify's grammar (ANTLR), which builds expressions node by node

math-verify has a second way in, for plain expressions, that hands text to sympy's `parse_expr` and so to `eval`; it is not used.
The grammar itself hands numbers to it. So the function in which sympy evaluates text is replaced by a refusal, and `parse_expr` by
a reader of numbers, before anything is graded.
"""

import logging
import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from hetero_rl.tasks.arithmetic import MAX_CHARACTERS, NotArithmeticError, Value, evaluate, same_value

__all__ = ["math_scorer", "values_in"]

_READ_CHARACTERS = 4 * MAX_CHARACTERS
"""Of the end of a completion: the answer comes last."""
_MOST_CANDIDATES = 8
_BOXED = "\\boxed{"
_DISPLAYED = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_RUN = re.compile(
    r"(?:\\[dt]?frac|\\sqrt|\\pi|\\cdot|\\times|\\div|\\left|\\right|\\%|[-+*/^%()\[\]{}0-9.,√π\u00d7÷·\u2212\u2013]|\s)+",
    re.ASCII,
)
_ANCHOR = re.compile(r"\banswer\b(?:\s+is\b|\s*:|\s*=)?", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)
_AROUND = " \t\r\n.,;:"


def math_scorer() -> Callable[[str, str], float]:
    """A function of reference and answer: 1 where they are the same value or expression, else 0."""
    from math_verify import LatexExtractionConfig, parse, verify

    _disable_evaluation()
    # It says once for every process that its own timer is off; the grader process has a timer.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    targets = [LatexExtractionConfig()]

    def score(reference: str, answer: str) -> float:
        if answer == reference:
            return 1.0
        wanted = _value(reference)
        given = next(values_in(answer), None) if wanted is not None else None
        if wanted is not None and given is not None:
            return float(same_value(wanted, given))
        expected = parse(f"${reference}$", targets, fallback_mode="no_fallback", parsing_timeout=None)
        found = parse(answer, targets, fallback_mode="no_fallback", parsing_timeout=None)
        return float(bool(expected and found) and verify(expected, found, timeout_seconds=None))

    return score


def _disable_evaluation() -> None:
    """Replaces what evaluates text in sympy.

    `parse_expr` and `sympify` of a string end in one function that calls `eval`: it refuses from now on. What the LaTeX grammar
    takes for a number it hands to `sympify`, which asks for `parse_expr` when it is called: it gets a reader of numbers.
    """
    import sympy
    from sympy.parsing import sympy_parser

    def refuse(*_: object) -> NoReturn:
        raise ValueError("text is never evaluated here")

    def number(text: str, **_: object) -> object:
        if not _PLAIN_NUMBER.fullmatch(text):
            refuse()
        return sympy.Integer(int(text)) if text.isdecimal() else sympy.Float(text)

    sympy_parser.eval_expr = refuse
    sympy_parser.parse_expr = number


def values_in(answer: str) -> Iterator[Value]:
    """Arithmetic in a text, the likeliest to be the answer first: boxed, displayed, after "answer is", then from the end."""
    text = answer[-_READ_CHARACTERS:]
    for candidate in _candidates(text):
        for part in (candidate, candidate.rpartition("=")[2]):
            if (value := _value(part)) is not None:
                yield value
                break


def _candidates(text: str) -> Iterator[str]:
    if (boxed := _last_boxed(text)) is not None:
        yield boxed
    displayed = [group for match in _DISPLAYED.finditer(text) for group in match.groups() if group]
    yield from displayed[: -_MOST_CANDIDATES - 1 : -1]
    anchors = list(_ANCHOR.finditer(text))
    if anchors and (run := _RUN.match(text, anchors[-1].end())):
        yield _without_loose_ends(run.group())
    runs = [_without_loose_ends(match.group()) for match in _RUN.finditer(text)]
    yield from runs[: -_MOST_CANDIDATES - 1 : -1]


def _without_loose_ends(run: str) -> str:
    """A run of arithmetic in prose often ends in the bracket of a remark, or begins with that of another."""
    return run.rstrip(" \t\r\n.,+-*/^([{").lstrip(" \t\r\n,*/^)]}")


def _last_boxed(text: str) -> str | None:
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth, begin = 1, start + len(_BOXED)
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


def _value(text: str) -> Value | None:
    try:
        return evaluate(text.strip(_AROUND + "$"))
    except NotArithmeticError:
        return None
