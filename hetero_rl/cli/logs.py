"""Where log records go."""

import logging
from pathlib import Path

from hetero_rl.config import Config
from hetero_rl.telemetry.logs import log_to
from hetero_rl.telemetry.tracing import start_tracing

__all__ = ["log_to_file", "log_to_stderr", "quiet_libraries"]


def log_to_stderr(config: Config, role: str, **fields: object) -> None:
    """A process of its own logs to stderr, which who started it keeps; traces go where the settings say.

    Args:
        config: The resolved settings.
        role: Of the process.
        fields: What each record says besides, such as the worker's name.
    """
    _start(config, role, None, fields)


def log_to_file(config: Config, file: Path) -> None:
    """The trainer shares its terminal with a person, so its records go to a file."""
    _start(config, "trainer", file, {"run": config.run.name})
    logging.captureWarnings(capture=True)


def _start(config: Config, role: str, file: Path | None, fields: dict[str, object]) -> None:
    log_to(config.logging.level, config.logging.format, file, role=role, **fields)
    watched = config.observability
    start_tracing(watched.traces, config.run.name, role=role, share=watched.trace_share)


def quiet_libraries() -> None:
    """Keeps the progress bars of transformers out of what a person reads."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
