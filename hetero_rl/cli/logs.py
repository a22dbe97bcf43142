"""Where log records go."""

import logging
from pathlib import Path

__all__ = ["log_to_file", "log_to_stderr", "quiet_libraries"]

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def log_to_stderr(level: str) -> None:
    """A process of its own logs to stderr; who started it keeps that."""
    logging.basicConfig(level=level.upper(), format=_FORMAT)


def log_to_file(level: str, file: Path) -> None:
    """The trainer shares its terminal with a person, so its records go to a file."""
    logging.basicConfig(level=level.upper(), format=_FORMAT, filename=file, encoding="utf-8")
    logging.captureWarnings(capture=True)


def quiet_libraries() -> None:
    """Keeps the progress bars of transformers out of what a person reads."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
