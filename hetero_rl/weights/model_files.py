"""The files of a Hugging Face directory that make the model without its weights, and their digests.

Standard library only. Only names on a closed list travel: configuration, tokenizer and chat template, never Python
and never weights. Trainer and worker compare `model_digests`, so a difference that changes no number (the version of
transformers that wrote the file, the dtype it was saved in) must not change them.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hetero_rl.errors import ConfigError, DamagedError
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.wire.messages import BlobReference, ModelDigests, ModelFile

__all__ = [
    "MODEL_FILE_LIMITS",
    "check_model_file",
    "collect_model_files",
    "install_model_file",
    "model_digests",
]

_SMALL = 4 * 2**20
_LARGE = 64 * 2**20

MODEL_FILE_LIMITS = {
    "config.json": _SMALL,
    "generation_config.json": _SMALL,
    "tokenizer.json": _LARGE,
    "tokenizer_config.json": _SMALL,
    "special_tokens_map.json": _SMALL,
    "added_tokens.json": _SMALL,
    "vocab.json": _LARGE,
    "vocab.txt": _LARGE,
    "merges.txt": _LARGE,
    "tokenizer.model": _LARGE,
    "chat_template.jinja": _SMALL,
}
"""Every file name that may travel, with its largest size in bytes."""

_VOLATILE_CONFIG_KEYS = frozenset(
    {"transformers_version", "_name_or_path", "name_or_path", "torch_dtype", "dtype", "_attn_implementation"}
)
_TOKENIZER_RULES = ("model", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
_TOKENIZER_PLAIN_FILES = ("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "added_tokens.json")


def model_digests(model_dir: Path) -> ModelDigests:
    """Digests of a directory's configuration and tokenizer; raises ConfigError naming what is missing."""
    return ModelDigests(config=_config_digest(model_dir), tokenizer=_tokenizer_digest(model_dir))


def collect_model_files(model_dir: Path) -> list[tuple[ModelFile, Path]]:
    """Each file that travels and where it lies, by name; raises ConfigError when one is too large."""
    found = []
    for name, limit in sorted(MODEL_FILE_LIMITS.items()):
        path = model_dir / name
        if not path.is_file():
            continue
        size = path.stat().st_size
        if size > limit:
            raise ConfigError(f"{path} has {size} bytes; at most {limit} are sent to workers")
        data = path.read_bytes()
        found.append((ModelFile(name, BlobReference(digest_of_bytes(data), len(data))), path))
    return found


def check_model_file(file: ModelFile) -> None:
    """Raises DamagedError unless a file has a name and size that may travel."""
    if file.name not in MODEL_FILE_LIMITS:
        raise DamagedError(
            f"model file {file.name!r} is not one of {sorted(MODEL_FILE_LIMITS)}; it is not installed"
        )
    if not 0 <= file.blob.size <= MODEL_FILE_LIMITS[file.name]:
        raise DamagedError(
            f"model file {file.name!r} has {file.blob.size} bytes; at most {MODEL_FILE_LIMITS[file.name]} are taken"
        )


def install_model_file(directory: Path, file: ModelFile, chunks: Iterable[bytes]) -> Path:
    """Writes a file that was received, under its own name, only when its bytes match; replaces it at once.

    Args:
        directory: Model directory of the worker; made when missing.
        file: Name and blob, as the hub listed them.
        chunks: The bytes.

    Raises:
        DamagedError: The name may not travel, or the bytes are too many, too few or others than promised.
    """
    check_model_file(file)
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=directory, prefix="model-", suffix=".partial")
    path = Path(partial)
    try:
        digest, size = hashlib.sha256(), 0
        with os.fdopen(descriptor, "wb") as target:
            for chunk in chunks:
                size += len(chunk)
                if size > file.blob.size:
                    raise DamagedError(f"model file {file.name!r} is longer than its {file.blob.size} bytes")
                digest.update(chunk)
                target.write(chunk)
        if size != file.blob.size or digest.hexdigest() != file.blob.digest:
            raise DamagedError(
                f"model file {file.name!r} arrived with {size} bytes and digest {digest.hexdigest()}, "
                f"not {file.blob.size} and {file.blob.digest}"
            )
        return path.replace(directory / file.name)
    finally:
        path.unlink(missing_ok=True)


def _config_digest(model_dir: Path) -> str:
    config = _read_json(model_dir / "config.json")
    return _canonical_digest(_without_keys(config, _VOLATILE_CONFIG_KEYS))


def _tokenizer_digest(model_dir: Path) -> str:
    """Over the rules of tokenizer.json; over the plain vocabulary files where there is none."""
    if (model_dir / "tokenizer.json").is_file():
        tokenizer = _read_json(model_dir / "tokenizer.json")
        rules = {key: tokenizer.get(key) for key in _TOKENIZER_RULES}
        rules["model"] = _canonical_tokenizer_model(rules["model"])
        return _canonical_digest(rules)
    plain = {
        name: digest_of_bytes((model_dir / name).read_bytes())
        for name in _TOKENIZER_PLAIN_FILES
        if (model_dir / name).is_file()
    }
    if not plain:
        raise ConfigError(f"{model_dir} has no tokenizer: neither tokenizer.json nor a vocabulary file")
    return _canonical_digest(plain)


def _canonical_tokenizer_model(model: Any) -> Any:
    """One form for what two versions of the tokenizers library write in two: merges as pairs, unset flags left out."""
    if not isinstance(model, dict):
        return model
    kept = {key: value for key, value in model.items() if value is not None and value is not False}
    if isinstance(kept.get("merges"), list):
        kept["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in kept["merges"]]
    return kept


def _without_keys(value: Any, keys: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without_keys(item, keys) for key, item in value.items() if key not in keys}
    if isinstance(value, list):
        return [_without_keys(item, keys) for item in value]
    return value


def _canonical_digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest_of_bytes(text.encode())


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path} is missing; model.path must be a Hugging Face model directory")
    if path.stat().st_size > MODEL_FILE_LIMITS[path.name]:
        raise ConfigError(f"{path} is larger than {MODEL_FILE_LIMITS[path.name]} bytes")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, not an object")
    return value
