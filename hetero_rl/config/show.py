"""The resolved tree as TOML text that `load_config` reads back, with nothing secret in it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from hetero_rl.config.secrets import REDACTED, is_secret_key
from hetero_rl.config.tree import Config

__all__ = ["show_config", "toml_value"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def show_config(config: Config, *, explain: bool = False) -> str:
    """Renders the tree as TOML; unset optional keys appear as comments.

    Args:
        config: The resolved settings.
        explain: Whether each key is preceded by its sentence.
    """
    return "\n".join(_section(config, "", explain=explain)).strip() + "\n"


def _section(section: BaseModel, prefix: str, *, explain: bool) -> Iterator[str]:
    subsections: list[tuple[str, BaseModel]] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            subsections.append((name, value))
            continue
        if explain and field.description:
            yield from (f"# {line.strip()}" for line in field.description.splitlines())
        yield f"# {name} = (unset)" if value is None else f"{name} = {toml_value(name, value)}"
    for name, value in subsections:
        path = f"{prefix}{name}"
        yield ""
        if explain and type(value).__doc__:
            yield f"# {(type(value).__doc__ or '').splitlines()[0]}"
        yield f"[{path}]"
        yield from _section(value, f"{path}.", explain=explain)


def toml_value(key: str, value: Any) -> str:
    """A value as TOML on one line, as `--set` reads it; what its key says is secret is left out."""
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        pairs = (
            f"{_key(name)} = {toml_value(name, item)}" for name, item in value.items() if item is not None
        )
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(key, item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = REDACTED if is_secret_key(key) else str(value)
    return _quoted(text)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    # A JSON string is a TOML basic string once DEL, which TOML refuses bare, is escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
