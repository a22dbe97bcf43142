"""Durable state of the trainer: one directory per step that is either whole or not there.

    RUN/checkpoints/step_00000020/
        model.safetensors      float32 master weights; with config.json and the tokenizer a Hugging Face directory
        optimizer.safetensors  AdamW moments by parameter name
        adapter_model.safetensors   where adapters are trained; model.safetensors is merged then
        manifest.json          last: step, weight version, consumed groups, RNG, digests of every file and of itself

In the layout `sharded` every rank writes files of its own in place of the first two, see `shards`.

Everything is written into a temporary directory, synced, and renamed; the parent is synced after. A reader takes a
directory only when the manifest's own digest and every file's size and digest are right, and falls back to the next
older one with a warning. A damaged directory is renamed aside, never deleted. Old checkpoints go only after a new one
was read back.

The watermark, which groups were trained in which step, is part of the same directory: what a restart continues from
and what it must not train again become durable together.
"""

import dataclasses
import errno
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hetero_rl.errors import DamagedError, DiskFullError, StorageError
from hetero_rl.files import make_directory, sync_directory
from hetero_rl.trainer.tensor_files import FileSeal, seal_of, write_bytes, write_tensors

__all__ = [
    "CheckpointStore",
    "Manifest",
    "latest_checkpoint",
    "list_checkpoints",
    "read_manifest",
    "verify_checkpoint",
]

FORMAT = 1
MANIFEST = "manifest.json"
_LOG = logging.getLogger(__name__)
ShardWriter = Callable[[Path], Mapping[str, FileSeal]]
"""Writes files into a directory and gives their seals; raises OSError."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself."""

    run_id: str
    step: int
    """Optimizer steps in the weights."""
    weight_version: int
    """The newest weight version that had a number when the checkpoint was written."""
    next_ordinal: int
    """Position in the data: ordinal of the next training group to be enqueued."""
    consumed: Mapping[int, tuple[tuple[int, int], ...]]
    """For each step the ordinals it trained, as ranges of first and last."""
    random_states: Mapping[str, Any]
    """States of the random number generators, by name."""
    config_digest: str
    """SHA-256 of the resolved configuration."""
    versions: Mapping[str, str]
    """Library versions, for people."""
    base_digest: str = ""
    """SHA-256 of the frozen model where adapters are trained."""
    files: Mapping[str, FileSeal] = dataclasses.field(default_factory=dict)
    """Every other file of the directory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified directory and its manifest."""

    path: Path
    manifest: Manifest


class CheckpointStore:
    """Writes checkpoints of a run and keeps the newest few.

    Args:
        directory: RUN/checkpoints.
        keep: Valid checkpoints kept.
        max_failures: Checkpoints in a row that may fail before the run stops.
    """

    def __init__(self, directory: Path, *, keep: int, max_failures: int) -> None:
        self._directory = directory
        self._keep = keep
        self._max_failures = max_failures
        self.failures = 0
        """Checkpoints in a row that failed."""

    def try_save(
        self,
        manifest: Manifest,
        tensors: Mapping[str, Mapping[str, Tensor]],
        files: Sequence[Path],
        shards: ShardWriter | None = None,
    ) -> Path | None:
        """Writes a checkpoint; None when it failed and training may go on without it.

        Args:
            manifest: Its `files` are filled in here.
            tensors: Safetensors files to write, by file name.
            files: Files to copy.
            shards: Writes more files into the directory it is given; None writes none.

        Raises:
            DiskFullError: No space is left for the last of `max_failures` checkpoints in a row.
            StorageError: The same for another reason.
        """
        try:
            path = self.save(manifest, tensors, files, shards)
        except StorageError as error:
            self.failures += 1
            if self.failures >= self._max_failures:
                raise
            _LOG.warning(
                "checkpoint of step %d failed (%d of %d in a row), training goes on: %s",
                manifest.step,
                self.failures,
                self._max_failures,
                error,
            )
            return None
        self.failures = 0
        return path

    def save(
        self,
        manifest: Manifest,
        tensors: Mapping[str, Mapping[str, Tensor]],
        files: Sequence[Path],
        shards: ShardWriter | None = None,
    ) -> Path:
        """Writes a checkpoint, reads it back and removes old ones; raises DiskFullError or StorageError."""
        target = self._directory / step_name(manifest.step)
        try:
            self._write(target, manifest, tensors, files, shards)
        except OSError as error:
            self._remove_leftovers()
            kind = DiskFullError if error.errno in _FULL else StorageError
            raise kind(f"checkpoint {target} could not be written: {error}") from error
        verify_checkpoint(target)
        self._prune()
        return target

    def _write(
        self,
        target: Path,
        manifest: Manifest,
        tensors: Mapping[str, Mapping[str, Tensor]],
        files: Sequence[Path],
        shards: ShardWriter | None,
    ) -> None:
        make_directory(self._directory)
        self._remove_leftovers()
        temporary = Path(tempfile.mkdtemp(dir=self._directory, prefix=f"{target.name}.tmp-"))
        _write_directory(temporary, manifest, tensors, files, shards)
        if target.exists():
            _set_aside(target)
        temporary.rename(target)
        sync_directory(self._directory)

    def oldest_step(self) -> int:
        """Step of the oldest checkpoint there is; 0 when there is none."""
        return min((step for step, _ in list_checkpoints(self._directory)), default=0)

    def _prune(self) -> None:
        for _, path in list_checkpoints(self._directory)[self._keep :]:
            # Under another name first: a crash in the middle of the removal leaves nothing that looks whole.
            doomed = path.rename(path.with_name(f"{path.name}.tmp-old"))
            shutil.rmtree(doomed, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in self._directory.glob("step_*.tmp-*"):
            shutil.rmtree(path, ignore_errors=True)


def step_name(step: int) -> str:
    """Directory name of a step's checkpoint."""
    return f"step_{step:08d}"


def list_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Steps and directories of all checkpoints, newest first, verified or not."""
    found = []
    for path in directory.glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isascii() and number.isdigit() and path.is_dir():
            found.append((int(number), path))
    return sorted(found, reverse=True)


def latest_checkpoint(directory: Path, *, set_damaged_aside: bool = False) -> Checkpoint | None:
    """The newest checkpoint whose every byte is right; None when there is none.

    Args:
        directory: RUN/checkpoints.
        set_damaged_aside: Whether damaged directories are renamed, as the run that continues does.
    """
    for _, path in list_checkpoints(directory):
        try:
            return Checkpoint(path, verify_checkpoint(path))
        except DamagedError as error:
            _LOG.warning("checkpoint %s is damaged, falling back to the one before: %s", path.name, error)
            if set_damaged_aside:
                _set_aside(path)
    return None


def verify_checkpoint(path: Path) -> Manifest:
    """Reads a checkpoint's manifest and checks every file against it; raises DamagedError naming the file."""
    manifest = read_manifest(path)
    for name, seal in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise DamagedError(f"{file} is missing")
        if file.stat().st_size != seal.size:
            raise DamagedError(f"{file} has {file.stat().st_size} bytes, its manifest says {seal.size}")
        if seal_of(file) != seal:
            raise DamagedError(f"{file} does not match the digest in its manifest")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Parses and checks manifest.json of a checkpoint directory; raises DamagedError."""
    file = path / MANIFEST
    try:
        fields = json.loads(file.read_bytes())
        stated = fields.pop("sha256")
        if _digest_of(fields) != stated:
            raise DamagedError(f"{file} does not match its own digest")
        return _manifest_from(fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{file} cannot be read: {error}") from error


def _write_directory(
    directory: Path,
    manifest: Manifest,
    tensors: Mapping[str, Mapping[str, Tensor]],
    files: Sequence[Path],
    shards: ShardWriter | None,
) -> None:
    seals = {name: write_tensors(directory / name, content) for name, content in tensors.items()}
    if shards is not None:
        seals |= shards(directory)
    seals |= {file.name: write_bytes(directory / file.name, file.read_bytes()) for file in files}
    fields = _fields_of(dataclasses.replace(manifest, files=seals))
    fields["sha256"] = _digest_of(fields)
    write_bytes(directory / MANIFEST, json.dumps(fields, indent=1).encode())
    sync_directory(directory)


def _fields_of(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON, in the form that it has after one round trip, so that its digest is stable."""
    fields = {"format": FORMAT, **dataclasses.asdict(manifest)}
    parsed: dict[str, Any] = json.loads(json.dumps(fields))
    return parsed


def _manifest_from(fields: dict[str, Any]) -> Manifest:
    found = fields.pop("format")
    if found != FORMAT:
        raise DamagedError(f"checkpoint format {found} is not known; this version reads format {FORMAT}")
    fields["files"] = {name: FileSeal(**seal) for name, seal in fields["files"].items()}
    fields["consumed"] = {
        int(step): tuple((first, last) for first, last in ranges)
        for step, ranges in fields["consumed"].items()
    }
    return Manifest(**fields)


def _digest_of(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _set_aside(path: Path) -> None:
    for number in range(1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            path.rename(aside)
            return
