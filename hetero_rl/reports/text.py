"""Text and numbers as a report shows them. Model output is hostile: everything passes through here."""

import html
import math
import unicodedata

__all__ = ["escape", "format_number", "visible"]

_LONGEST = 20_000
# Format characters that reorder or hide what stands beside them are shown, not obeyed.
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_KEPT = {"\n", "\t"}
_LARGEST_WHOLE = 10**9
_SMALLEST_PLAIN, _LARGEST_PLAIN = -4, 9  # powers of ten written without an exponent


def visible(text: str) -> str:
    """The text with control, format, surrogate and unassigned characters written as escapes; cut when it is huge."""
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + f" … ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _HIDDEN_CATEGORIES
        else f"\\u{ord(character):04x}"
        for character in cut
    )


def escape(value: object) -> str:
    """Any value as HTML text, safe in an element and in a quoted attribute."""
    return html.escape(visible(str(value)), quote=True)


def format_number(value: float | str | None, digits: int = 3) -> str:
    """A number with that many significant digits, as people read it; text as it is; a dash for nothing.

    Example: 0.0123456 gives "0.0123", 123456.7 gives "123457", 3e-9 gives "3.00e-09".
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int):
        return str(value)
    return _float_text(value, digits)


def _float_text(value: float, digits: int) -> str:
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return str(int(value))
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < _SMALLEST_PLAIN or magnitude >= _LARGEST_PLAIN:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - magnitude, 0)}f}"
