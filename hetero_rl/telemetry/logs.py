"""Log records: as lines for people, or as JSON for machines, with who says it; never with a secret.

Every JSON line has `time` (ISO 8601, UTC), `level`, `logger`, `message`, `version` (of hetero-rl), and what the process said of itself with
`describe_process`: `role`, `run`, `worker`, `weight_version`. An exception is in `exception`. A record that belongs to a trace has `trace_id` and `span_id`.

Whoever reads a token or a private key hands it to `hide`: both formats print [hidden] in its place, whatever record it would stand in.
"""

import datetime as dt
import json
import logging
import re
import threading
from pathlib import Path
from typing import Literal

from typing_extensions import override

import hetero_rl
from hetero_rl.telemetry.tracing import current_ids

__all__ = ["JsonFormatter", "TextFormatter", "describe_process", "hide", "log_to", "process_field"]

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_HIDDEN = "[hidden]"
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_BEARER = re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}")
_SHORTEST = 8
"""A shorter secret would hide words that are none."""

_lock = threading.Lock()
_fields: dict[str, object] = {}
_secrets: set[str] = set()


def describe_process(**fields: object) -> None:
    """Sets fields of every later record, such as run="mine" or weight_version=7."""
    with _lock:
        _fields.update(fields)


def process_field(name: str) -> object | None:
    """What was said of this process under a name; None when nothing was."""
    with _lock:
        return _fields.get(name)


def hide(*secrets: str) -> None:
    """Keeps texts out of every later record."""
    with _lock:
        _secrets.update(secret for secret in secrets if len(secret) >= _SHORTEST)


def _without_secrets(text: str) -> str:
    with _lock:
        known = sorted(_secrets, key=len, reverse=True)
    for secret in known:
        text = text.replace(secret, _HIDDEN)
    return _BEARER.sub(rf"\1 {_HIDDEN}", _KEY.sub(_HIDDEN, text))


class TextFormatter(logging.Formatter):
    """One line for people."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    @override
    def format(self, record: logging.LogRecord) -> str:
        return _without_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object on one line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        entry: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _without_secrets(record.getMessage()),
            "version": hetero_rl.__version__,
        }
        with _lock:
            entry |= _fields
        entry |= current_ids()
        if record.exc_info:
            entry["exception"] = _without_secrets(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def log_to(level: str, style: Literal["text", "json"], file: Path | None = None, **fields: object) -> None:
    """Sets up this process's log records, once; a second call only adds fields.

    Args:
        level: Least level.
        style: For people or for machines.
        file: Where they go; None is standard error.
        fields: What the process says of itself (`describe_process`).
    """
    describe_process(**fields)
    handler = logging.StreamHandler() if file is None else logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
