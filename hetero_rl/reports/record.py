"""Reports as JSON files: a kind, a schema version, and the body. A newer or damaged file is refused by name.

{"schema": "hetero-rl/calibration", "schema_version": 1, "software_version": "0.1.0", ...}
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hetero_rl
from hetero_rl.errors import DamagedError, StorageError

__all__ = ["read_record", "record_text", "write_text"]

_PREFIX = "hetero-rl/"
_LARGEST = 256 * 2**20


def record_text(kind: str, version: int, body: Mapping[str, object]) -> str:
    """The text of a report file. Numbers that are not finite become null: JSON has no others.

    Args:
        kind: What it reports, such as "calibration".
        version: Version of the body's shape, from 1; grows when a reader of the old shape would be wrong.
        body: JSON values.
    """
    record = {
        "schema": f"{_PREFIX}{kind}",
        "schema_version": version,
        "software_version": hetero_rl.__version__,
        **body,
    }
    return json.dumps(_finite(record), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def read_record(path: Path, kind: str, newest: int) -> dict[str, Any]:
    """The body of a report file.

    Args:
        path: The file.
        kind: What it must report.
        newest: Highest schema version that the caller reads.

    Raises:
        DamagedError: It is no JSON object, or not of that kind.
        StorageError: It cannot be read, is too large, or a newer hetero-rl wrote it.
    """
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise StorageError(f"{path} has {size} bytes; a report has at most {_LARGEST}")
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is no report: {error}") from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(record, dict) or record.get("schema") != f"{_PREFIX}{kind}":
        found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise DamagedError(f"{path} holds {found!r}, not a {kind} report ({_PREFIX}{kind})")
    version = record.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise DamagedError(f"{path} has schema_version {version!r}; a positive integer is required")
    if version > newest:
        raise StorageError(
            f"{path} has schema_version {version}; this hetero-rl {hetero_rl.__version__} reads up to {newest}. "
            f"It was written by hetero-rl {record.get('software_version')!r}: update this one"
        )
    return record


def write_text(path: Path, text: str) -> None:
    """Writes a report in one piece: readers see the old file or the new one. Lone surrogates become escapes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    temporary.replace(path)


def _finite(value: object) -> object:
    """JSON values with null in place of NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
