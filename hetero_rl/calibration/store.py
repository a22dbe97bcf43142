"""Where calibrations are kept: by model and numerics id, in the run and in the user's data directory. Standard library only.

    RUN/calibrations/NUMERICS_ID.json                     USER_DATA/hetero-rl/calibrations/MODEL_DIGEST/NUMERICS_ID.json

A worker whose numerics id has no file for the run's model is uncalibrated.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hetero_rl.errors import ConfigError
from hetero_rl.reports.record import write_text

__all__ = ["calibrated_ids", "keep_calibration", "user_calibrations"]

_DIGEST = re.compile(r"[0-9a-f]{16,64}")
_ID = re.compile(r"[0-9a-f]{16}")
_MODEL_DIGITS = 16


def user_calibrations() -> Path:
    """The user's own: $HETERO_RL_CALIBRATIONS, else under $XDG_DATA_HOME or ~/.local/share."""
    if own := os.environ.get("HETERO_RL_CALIBRATIONS"):
        return Path(own)
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "hetero-rl" / "calibrations"


def keep_calibration(
    text: str, model_digest: str, numerics_ids: Iterable[str], *, run: Path | None = None
) -> list[Path]:
    """Stores a calibration file under each numerics id that it measured; returns where.

    Args:
        text: The file.
        model_digest: Digest of the model's configuration.
        numerics_ids: Of its subjects.
        run: Directory of a run that keeps a copy.
    """
    directories = [_model_directory(model_digest), *([] if run is None else [run / "calibrations"])]
    written = []
    for numerics_id in numerics_ids:
        if not _ID.fullmatch(numerics_id):
            raise ConfigError(f"numerics id {numerics_id!r} is not 16 hexadecimal digits")
        for directory in directories:
            path = directory / f"{numerics_id}.json"
            write_text(path, text)
            written.append(path)
    return written


def calibrated_ids(model_digest: str, run: Path | None = None) -> frozenset[str]:
    """Numerics ids that were calibrated for a model, here or in the run."""
    directories = [] if not _DIGEST.fullmatch(model_digest) else [_model_directory(model_digest)]
    if run is not None:
        directories.append(run / "calibrations")
    found: set[str] = set()
    for directory in directories:
        if directory.is_dir():
            found.update(path.stem for path in directory.glob("*.json") if _ID.fullmatch(path.stem))
    return frozenset(found)


def _model_directory(model_digest: str) -> Path:
    if not _DIGEST.fullmatch(model_digest):
        raise ConfigError(f"model digest {model_digest!r} is not hexadecimal")
    return user_calibrations() / model_digest[:_MODEL_DIGITS]
