"""Where a worker's model directory comes from: its own disk, or files that the hub lists by digest."""

import hashlib
import logging
from pathlib import Path

from hetero_rl.errors import ConfigError
from hetero_rl.weights.digests import digest_of_file
from hetero_rl.weights.model_files import check_model_file, install_model_file
from hetero_rl.wire.messages import ModelFile, RunDescription
from hetero_rl.worker.blob_cache import BlobCache

__all__ = ["model_directory"]

_logger = logging.getLogger(__name__)


async def model_directory(
    run: RunDescription, own_path: str | None, models_dir: Path, blobs: BlobCache
) -> Path:
    """A directory with the model's configuration and tokenizer.

    Args:
        run: Lists the files that the trainer gave to the hub.
        own_path: The worker's own model directory; None takes the files from the hub.
        models_dir: Where fetched models are kept, one directory for each set of files.
        blobs: Fetches the files.

    Raises:
        ConfigError: There is no model to be had.
        DamagedError: A file may not travel, or arrived damaged.
    """
    if own_path is not None:
        return _own_directory(Path(own_path))
    if not run.model_files:
        raise ConfigError(
            f"the hub of run {run.run_id!r} has no model files; set inference.worker.model_path to the model's directory"
        )
    for file in run.model_files:
        check_model_file(file)
    directory = models_dir / _identity(run.model_files)
    for file in run.model_files:
        await _install(directory, file, blobs)
    return directory


def _own_directory(path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(f"inference.worker.model_path is {str(path)!r}, which is not a directory")
    return path


async def _install(directory: Path, file: ModelFile, blobs: BlobCache) -> None:
    path = directory / file.name
    if path.is_file() and digest_of_file(path) == file.blob.digest:
        return
    fetched = await blobs.fetch(file.blob)
    try:
        with fetched.open("rb") as source:
            install_model_file(directory, file, iter(lambda: source.read(2**20), b""))
    finally:
        blobs.forget([file.blob])
    _logger.info("model file %s received (%d bytes)", file.name, file.blob.size)


def _identity(files: tuple[ModelFile, ...]) -> str:
    listed = "\n".join(sorted(f"{file.name} {file.blob.digest}" for file in files))
    return hashlib.sha256(listed.encode()).hexdigest()[:32]
