"""From files and `--set` to one validated `Config`. Later sources win; every problem becomes one line.

    defaults ◄── first file ◄── ... ◄── last file ◄── first --set ◄── ... ◄── last --set

Tables merge key by key; anything else is replaced. `--set key={...}` replaces a whole table.
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hetero_rl.config.secrets import shown_value
from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError

__all__ = ["key_paths", "load_config", "nearest_key", "parse_override"]

KeyPath = tuple[str, ...]

MAX_FILE_BYTES = 2**20


@dataclasses.dataclass(slots=True)
class _Layers:
    """A tree under construction and where each of its leaves came from."""

    tree: dict[str, Any] = dataclasses.field(default_factory=dict)
    sources: dict[KeyPath, str] = dataclasses.field(default_factory=dict)

    def merge_table(self, table: Mapping[str, Any], source: str, at: KeyPath = ()) -> None:
        """Merges a table key by key."""
        for key, value in table.items():
            path = (*at, key)
            if isinstance(value, Mapping) and value:
                self.merge_table(value, source, path)
            else:
                self.assign(path, value, source)

    def assign(self, path: KeyPath, value: object, source: str) -> None:
        """Replaces one leaf or table; what stood in the way is replaced too."""
        parent = self.tree
        for key in path[:-1]:
            child = parent.get(key)
            if not isinstance(child, dict):
                child = parent[key] = {}
            parent = child
        parent[path[-1]] = value
        self.sources[path] = source

    def origin(self, path: KeyPath) -> str:
        """Where a key came from, as the end of a sentence; empty when it is a default."""
        for length in range(len(path), 0, -1):
            if (source := self.sources.get(path[:length])) is not None:
                return f" (from {source})"
        return ""


def load_config(files: Iterable[Path | str] = (), overrides: Sequence[str] = ()) -> Config:
    """Resolves the tree of settings.

    Args:
        files: TOML files, or JSON files as a run directory keeps them; a later file wins.
        overrides: `key.path=value` texts in the order given; they win over files.

    Raises:
        ConfigError: One line for each problem, with the full key, the value and the bound or the nearest name.
    """
    layers = _Layers()
    for file in map(Path, files):
        layers.merge_table(_read_table(file), str(file))
    for text in overrides:
        path, value = parse_override(text)
        layers.assign(path, value, "--set")
    try:
        return Config.model_validate(layers.tree)
    except ValidationError as error:
        lines = [line for problem in error.errors() for line in _describe(problem, layers)]
        raise ConfigError("\n".join(lines)) from None


def parse_override(text: str) -> tuple[KeyPath, object]:
    """Splits `key.path=value`; the value is read as TOML, and as plain text when it is not TOML."""
    key, separator, raw = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not separator or not all(path):
        raise ConfigError(f"--set {text!r}: give key.path=value, such as run.steps=200")
    raw = raw.strip()
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return path, raw
    # A value with a line break could otherwise smuggle in further keys.
    return path, parsed["value"] if parsed.keys() == {"value"} else raw


def key_paths(model: type[BaseModel] = Config) -> list[str]:
    """Every key of the tree as a dotted path, sections left out."""
    paths: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            paths += [f"{name}.{path}" for path in key_paths(field.annotation)]
        else:
            paths.append(name)
    return paths


def nearest_key(path: KeyPath) -> str | None:
    """The known key that an unknown one most likely means: by whole path, or by its last part anywhere in the tree."""
    known = key_paths()
    dotted = ".".join(path)
    by_last_part = [key for key in known if key.rpartition(".")[2] == path[-1]]
    if len(by_last_part) == 1:
        return by_last_part[0]
    sections = {key.rpartition(".")[0] for key in known} - {""}
    if matches := get_close_matches(dotted, [*known, *sections], n=1, cutoff=0.6):
        return matches[0]
    last_parts = {key.rpartition(".")[2]: key for key in known}
    if matches := get_close_matches(path[-1], last_parts, n=1, cutoff=0.8):
        return last_parts[matches[0]]
    return None


def _read_table(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{file}: larger than {MAX_FILE_BYTES} bytes; this is no configuration file")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as text: {error}") from None
    try:
        table = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: must hold one table of settings, not {type(table).__name__}")
    return table


def _describe(problem: Mapping[str, Any], layers: _Layers) -> Iterator[str]:
    path = tuple(str(part) for part in problem["loc"])
    given = problem["input"]
    if problem["type"] == "extra_forbidden":
        yield from (_unknown(leaf, layers) for leaf in _leaves(path, given))
        return
    dotted = ".".join(path) or "configuration"
    reason = str(problem["msg"]).removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:] + layers.origin(path)
    # A rule across keys is reported for their table; its whole content would bury the reason.
    value = "" if isinstance(given, Mapping) else f" = {shown_value(path[-1] if path else '', given)}"
    yield f"{dotted}{value}: {reason}"


def _unknown(path: KeyPath, layers: _Layers) -> str:
    nearest = nearest_key(path)
    hint = f"did you mean {nearest}?" if nearest else "`hetero-rl config show` lists the keys"
    return f"{'.'.join(path)}: unknown key; {hint}{layers.origin(path)}"


def _leaves(path: KeyPath, value: object) -> Iterator[KeyPath]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves((*path, str(key)), item)
    else:
        yield path
