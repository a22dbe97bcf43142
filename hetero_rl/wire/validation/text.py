"""Checks of names, digests and free text."""

import re

from hetero_rl.wire.invalid import invalid

__all__ = ["check_digest", "check_name", "check_text"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 80


def check_name(value: str, field: str) -> None:
    """Refuses what is not 1 to 64 characters of [A-Za-z0-9._-]: names become parts of paths and log lines."""
    if not _NAME.fullmatch(value):
        raise invalid(field, f"is {value[:_SHOWN]!r}, expected 1 to 64 characters of [A-Za-z0-9._-]")


def check_digest(value: str, field: str) -> None:
    """Refuses what is not a SHA-256 in lower-case hexadecimal."""
    if not _DIGEST.fullmatch(value):
        raise invalid(field, f"is {value[:_SHOWN]!r}, expected 64 lower-case hexadecimal digits")


def check_text(value: str, field: str, most: int) -> None:
    """Refuses text of more than `most` characters, and control characters that would forge lines in a log."""
    if len(value) > most:
        raise invalid(field, f"has {len(value)} characters, at most {most} are accepted", "TOO_LARGE")
    if not value.isprintable():
        raise invalid(field, f"is {value[:_SHOWN]!r}, expected printable characters on one line")
