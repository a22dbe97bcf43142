r"""Reads arithmetic that a model wrote, without evaluating text: a tokenizer and a descent over a closed grammar.

    sum      := product (("+" | "-") product)*
    product  := signed (("*" | "/" | nothing) signed)*      nothing only before a root, pi or a bracket: 2\pi
    signed   := ("+" | "-")* power
    power    := postfix ("^" signed)?
    postfix  := atom "%"*
    atom     := number | "pi" | "(" sum ")" | "frac" atom atom | "sqrt" ("[" sum "]")? atom

What is rational is computed exactly. A root that is not, and pi, are decimals of 60 digits. Text, numbers, exponents and nesting are
bounded, so that a short text costs little time and memory whatever it says; beyond a bound, or outside the grammar, the text
is `NotArithmeticError` and nothing else.
"""

import dataclasses
import decimal
import re
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

__all__ = ["NotArithmeticError", "Value", "evaluate", "same_value"]

MAX_CHARACTERS = 1_000
MAX_DIGITS = 300
MAX_DEPTH = 40
MAX_BITS = 8_000
"""Of numerator and denominator of every number on the way."""
MAX_EXPONENT = 2_000
_DECIMAL_PLACES = 6
"""To which numbers agree when one of them is written as a decimal or is irrational, as math-verify has it."""

_CONTEXT = decimal.Context(
    prec=60,
    Emax=100_000,
    Emin=-100_000,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow, decimal.Clamped],
)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")

_TOKEN = re.compile(
    r"(?P<number>(?:\d{1,3}(?:(?:,|\{,\})\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d{1,4}(?![\d.]))?|\.\d+)"
    r"|(?P<name>\\[dt]?frac|\\sqrt|√|\\pi|π)"
    r"|(?P<operator>\*\*|\\cdot|\\times|\\div|\\%|[-+*/^%()\[\]{}\u2212\u2013\u00d7·÷])"
    r"|(?P<space>\s+|\\[,;:! ]|~|\\left|\\right|\\\$)",
    re.ASCII,
)
_MEANINGS = {
    "**": "^", "\\cdot": "*", "\\times": "*", "\u00d7": "*", "·": "*", "\\div": "/", "÷": "/", "\\%": "%", "\u2212": "-", "\u2013": "-",
    "\\dfrac": "frac", "\\tfrac": "frac", "\\frac": "frac", "\\sqrt": "sqrt", "√": "sqrt", "\\pi": "pi", "π": "pi",
}  # fmt: skip
_CLOSING = {"(": ")", "{": "}"}
_FACTORS = {"frac", "sqrt", "pi", "(", "{"}
"""What may follow a factor without a sign between them."""

_Number = Fraction | Decimal
_N = TypeVar("_N", Fraction, Decimal)


class NotArithmeticError(ValueError):
    """The text is no arithmetic, or too much of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """What a text comes to."""

    number: _Number
    written_as_decimal: bool
    """Whether a number in it has a decimal point, so that it may be rounded."""


def evaluate(text: str) -> Value:
    r"""The value of a text such as `1/2`, `-3^{2}`, `2\sqrt{3}`, `1,000` or `12.5\%`.

    Raises:
        NotArithmeticError: It is anything else, or beyond a bound.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotArithmeticError(f"{len(text)} characters, at most {MAX_CHARACTERS} are read")
    reader = _Reader(_tokens(text))
    try:
        with decimal.localcontext(_CONTEXT):
            number = reader.whole()
    except (ArithmeticError, OverflowError) as error:
        raise NotArithmeticError(f"it has no value: {type(error).__name__}") from error
    return Value(number, written_as_decimal="." in text)


def same_value(left: Value, right: Value) -> bool:
    """Whether two values are equal: exactly, or to six decimal places when one of them cannot be exact."""
    if left.number == right.number:
        return True
    exact = isinstance(left.number, Fraction) and isinstance(right.number, Fraction)
    if exact and not (left.written_as_decimal or right.written_as_decimal):
        return False
    with decimal.localcontext(_CONTEXT):
        distance = abs(_to_fraction(left.number) - _to_fraction(right.number))
    return distance * 2 <= Fraction(1, 10**_DECIMAL_PLACES)


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token; kind is "number" or the token's meaning."""
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotArithmeticError(f"{text[position]!r} at {position} is no part of arithmetic")
        position = match.end()
        if match.lastgroup == "number":
            tokens.append(("number", match.group()))
        elif match.lastgroup != "space":
            tokens.append((_MEANINGS.get(match.group(), match.group()), match.group()))
    return tokens


class _Reader:
    """Walks once over the tokens; every rule of the grammar is one method."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._position = 0
        self._depth = 0

    def whole(self) -> _Number:
        number = self._sum()
        self._expect("end")
        return number

    @property
    def _next(self) -> str:
        return self._tokens[self._position][0]

    def _take(self) -> str:
        self._position += 1
        return self._tokens[self._position - 1][1]

    def _expect(self, kind: str) -> None:
        if self._next != kind:
            raise NotArithmeticError(f"expected {kind!r}, found {self._next!r}")
        self._position += 1

    def _sum(self) -> _Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotArithmeticError(f"nested more than {MAX_DEPTH} deep")
        total = self._product()
        while self._next in {"+", "-"}:
            sign = self._next
            self._position += 1
            term = self._product()
            total = _bounded(_combine(total, term, sign))
        self._depth -= 1
        return total

    def _product(self) -> _Number:
        mixed = self._mixed_number()
        total = self._signed() if mixed is None else mixed
        while self._next in {"*", "/", *_FACTORS}:
            operator = self._next if self._next in {"*", "/"} else "*"
            if self._next == operator:
                self._position += 1
            total = _bounded(_combine(total, self._signed(), operator))
        return total

    def _mixed_number(self) -> _Number | None:
        r"""A whole number right before a fraction, 1\frac{1}{2}, is their sum."""
        if self._next != "number" or self._tokens[self._position + 1][0] != "frac":
            return None
        whole = _number(self._take())
        return _bounded(_combine(whole, self._atom(), "+"))

    def _signed(self) -> _Number:
        negative = False
        while self._next in {"+", "-"}:
            negative ^= self._next == "-"
            self._position += 1
        number = self._power()
        return -number if negative else number

    def _power(self) -> _Number:
        base = self._postfix()
        if self._next != "^":
            return base
        self._position += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotArithmeticError(f"nested more than {MAX_DEPTH} deep")
        exponent = self._signed()
        self._depth -= 1
        return _bounded(_power(base, exponent))

    def _postfix(self) -> _Number:
        number = self._atom()
        while self._next == "%":
            self._position += 1
            number = _bounded(_combine(number, Fraction(100), "/"))
        return number

    def _atom(self) -> _Number:
        kind = self._next
        text = self._take()
        if kind == "number":
            return _number(text)
        if kind == "pi":
            return _PI
        if kind in _CLOSING:
            number = self._sum()
            self._expect(_CLOSING[kind])
            return number
        if kind == "frac":
            numerator = self._argument()
            return _bounded(_combine(numerator, self._argument(), "/"))
        if kind == "sqrt":
            return self._root()
        raise NotArithmeticError(f"found {kind!r} where a number is expected")

    def _root(self) -> _Number:
        degree: _Number = Fraction(2)
        if self._next == "[":
            self._position += 1
            degree = self._sum()
            self._expect("]")
        if degree == 0:
            raise NotArithmeticError("a root of degree 0")
        return _bounded(_power(self._argument(), _combine(Fraction(1), degree, "/")))

    def _argument(self) -> _Number:
        r"""What a command of LaTeX applies to: a group, or one digit of what follows, as in \frac12."""
        kind, text = self._tokens[self._position]
        if kind == "number" and text.isascii() and text.isdecimal() and len(text) > 1:
            self._tokens[self._position] = ("number", text[1:])
            return Fraction(int(text[0]))
        return self._atom()


def _number(text: str) -> Fraction:
    plain = text.replace("{,}", "").replace(",", "")
    mantissa, _, exponent = plain.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_EXPONENT:
        raise NotArithmeticError(
            f"a number of {len(mantissa)} digits and exponent {exponent or 0} is too long"
        )
    whole, _, decimals = mantissa.partition(".")
    scale = int(exponent or 0) - len(decimals)
    digits = int(whole + decimals)
    return Fraction(digits * 10**scale) if scale >= 0 else Fraction(digits, 10**-scale)


def _to_fraction(number: _Number) -> Fraction:
    return number if isinstance(number, Fraction) else Fraction(number)


def _to_decimal(number: _Number) -> Decimal:
    return number if isinstance(number, Decimal) else Decimal(number.numerator) / Decimal(number.denominator)


def _combine(left: _Number, right: _Number, operator: str) -> _Number:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _apply(left, right, operator)
    return _apply(_to_decimal(left), _to_decimal(right), operator)


def _apply(left: _N, right: _N, operator: str) -> _N:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    return left / right


def _power(base: _Number, exponent: _Number) -> _Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        exact = _exact_power(base, exponent)
        if exact is not None:
            return exact
    power = _to_decimal(exponent)
    if abs(power) > MAX_EXPONENT:
        raise NotArithmeticError(f"exponent {power:.3g} is beyond {MAX_EXPONENT}")
    return _to_decimal(base) ** power


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """base^exponent where it is rational; None where it is not."""
    if abs(exponent.numerator) > MAX_EXPONENT or exponent.denominator > MAX_EXPONENT:
        raise NotArithmeticError(f"exponent {exponent} is beyond {MAX_EXPONENT}")
    root = _exact_root(base, exponent.denominator)
    if root is None:
        return None
    if abs(exponent.numerator) * _bits(root) > MAX_BITS:
        raise NotArithmeticError(f"a power of more than {MAX_BITS} bits")
    return Fraction(root**exponent.numerator)


def _exact_root(number: Fraction, degree: int) -> Fraction | None:
    if degree == 1:
        return number
    if number < 0:
        if degree % 2 == 0:
            raise NotArithmeticError("an even root of a negative number")
        positive = _exact_root(-number, degree)
        return None if positive is None else -positive
    parts = [_whole_root(part, degree) for part in (number.numerator, number.denominator)]
    return None if None in parts else Fraction(*(part for part in parts if part is not None))


def _whole_root(number: int, degree: int) -> int | None:
    """The root of a whole number that has one; None otherwise."""
    root = 1 << -(-number.bit_length() // degree)  # not below the root; Newton's steps go down to it
    while number and (lower := ((degree - 1) * root + number // root ** (degree - 1)) // degree) < root:
        root = lower
    root = root if number else 0
    return root if root**degree == number else None


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _bounded(number: _Number) -> _Number:
    if isinstance(number, Fraction) and _bits(number) > MAX_BITS:
        raise NotArithmeticError(f"a number of more than {MAX_BITS} bits")
    return number
