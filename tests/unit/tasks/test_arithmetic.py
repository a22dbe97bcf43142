r"""Arithmetic is read by a grammar of ours: exact, bounded, and nothing but arithmetic."""

import operator
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_rl.tasks.arithmetic import NotArithmeticError, evaluate, same_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-7", -7),
        ("--7", 7),
        ("0.125", Fraction(1, 8)),
        (".5", Fraction(1, 2)),
        ("1e3", 1000),
        ("1.5e-3", Fraction(3, 2000)),
        ("1,234,567.5", Fraction(2469135, 2)),
        (r"12{,}000", 12000),
        ("1/3 + 1/6", Fraction(1, 2)),
        ("2 - 3 * 4", -10),
        ("12 / 3 / 2", 2),
        ("(2 + 3)(4 - 1)", 15),
        ("-3^2", -9),
        ("(-3)**2", 9),
        ("2^3^2", 512),
        ("2^{-3}", Fraction(1, 8)),
        ("(4/9)^(1/2)", Fraction(2, 3)),
        ("(-8)^{1/3}", -2),
        (r"\frac{3}{6}", Fraction(1, 2)),
        (r"\dfrac12", Fraction(1, 2)),
        (r"\frac{1}{\frac{2}{3}}", Fraction(3, 2)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"\sqrt{49}", 7),
        (r"\sqrt[3]{27}", 3),
        (r"2\sqrt{\frac{1}{4}}", 1),
        ("12.5%", Fraction(1, 8)),
        (r"50\%", Fraction(1, 2)),
        (r"\left( 3 \times 4 \right) \div 6", 2),
        (r"\$1{,}000", 1000),
    ],
)
def test_rational_arithmetic_is_exact(text, value):
    assert evaluate(text).number == value


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"\sqrt{2}\sqrt{2}", "2", True),
        (r"\frac{\pi}{2}", "1.570796", True),
        (r"\pi", "3.14", False),
        ("1/3", "0.333333", True),
        ("1/3", "0.3333", False),
        ("1/3", "333333/1000000", False),
        ("1", "2", False),
    ],
)
def test_values_agree_exactly_or_to_six_places_where_they_cannot(left, right, same):
    assert same_value(evaluate(left), evaluate(right)) is same
    assert same_value(evaluate(right), evaluate(left)) is same


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "two", "3 4", "5-", "2^^3", "1..2", "()", "(1", "1)", "1;2", "1=1", "²", "٣", "i", "\\sqrt{-1}", "1/0",
     "0^(-1)", "\\sqrt[0]{4}", "\\frac{1}", "e", "inf", "nan", "1_000", "0x10", "1j", "1,2", "\\sum 3", "3!"],
)  # fmt: skip
def test_anything_else_has_no_value(text):
    with pytest.raises(NotArithmeticError):
        evaluate(text)


HOSTILE = [
    "__import__('os').system('true')",
    "().__class__.__bases__[0].__subclasses__()",
    "exec(open(chr(47)).read())",
    "(lambda: 1)()",
    "[1 for x in (1,)]",
    "Symbol('x').func",
    "9**9**9**9",
    "9^9^9",
    "10**2000**2",
    "2^(2^20)",
    "(((2^2000)^2000)^2000)",
    "1e9999",
    "1e-9999",
    "9" * 999,
    "9" * 100_000,
    "(" * 500,
    "(" * 500 + "1" + ")" * 500,
    "-" * 900,
    "2^" * 400 + "2",
    "\\frac" * 190,
    "\\sqrt" * 190 + "2",
    "\\sqrt{" * 160 + "2" + "}" * 160,
    "(1/" * 300 + "3" + ")" * 300,
    "\\sqrt[1999]{2}" * 70,
    "\\sqrt[3]{7^2000}" * 60,
    "\\pi^2000" * 110,
    "1/" * 450 + "7",
    "7^2000/11^2000+" * 60 + "1",
    "%" * 1000,
    "\x00\ud800\u202e",
    "1" + "\\,".join("+1" for _ in range(200)),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_costs_little_and_runs_nothing(text, monkeypatch):
    def never(*_, **__):
        raise AssertionError("evaluated")

    for name in ("eval", "exec", "compile", "__import__"):
        monkeypatch.setattr(f"builtins.{name}", never)
    started = time.process_time()
    try:
        evaluate(text)
    except NotArithmeticError:
        pass
    finally:
        monkeypatch.undo()
    assert time.process_time() - started < 10  # tens of milliseconds; a runaway power takes for ever


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123456789.,+-*/^%()[]{} \\eπ√$", max_size=60) | st.text(max_size=60))
def test_any_text_has_a_value_or_none(text):
    try:
        evaluate(text)
    except NotArithmeticError:
        return


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def combined(parts):
    (left, left_value), sign, (right, right_value) = parts
    fits = left_value is not None and right_value is not None and not (sign == "/" and right_value == 0)
    return f"({left}{sign}{right})", OPERATIONS[sign](left_value, right_value) if fits else None


TERMS = st.recursive(
    st.integers(0, 99).map(lambda number: (str(number), Fraction(number))),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(combined),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(TERMS)
def test_it_agrees_with_fractions(term):
    text, value = term
    if value is None:
        with pytest.raises(NotArithmeticError):
            evaluate(text)
    else:
        assert evaluate(text).number == value
