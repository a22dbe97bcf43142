"""Where everything of a run lies on disk."""

import dataclasses
from pathlib import Path

__all__ = ["RunDirectory"]


@dataclasses.dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of a run; nothing is created until `prepare`."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved settings, as JSON."""
        return self.root / "config.json"

    @property
    def hub(self) -> Path:
        """What the hub keeps."""
        return self.root / "hub"

    @property
    def journal(self) -> Path:
        """The journal of the hub."""
        return self.hub / "journal.sqlite"

    @property
    def hub_address(self) -> Path:
        """Written by a running hub: the host:port that it listens on."""
        return self.hub / "address"

    @property
    def remote_workers(self) -> Path:
        """What to type on other machines, when the run waits for workers there."""
        return self.root / "remote-workers.txt"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of the trainer, one directory for each."""
        return self.root / "checkpoints"

    @property
    def sparsity(self) -> Path:
        """What each weight delta changed, in counts for each tensor: one JSON object for each version."""
        return self.root / "weights.jsonl"

    @property
    def metrics(self) -> Path:
        """One JSON object for each step."""
        return self.root / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.root / "tensorboard"

    @property
    def logs(self) -> Path:
        """Output of the processes started here."""
        return self.root / "logs"

    @property
    def used(self) -> bool:
        """Whether a run was begun here: settings and empty files are none, so a start that failed can be repeated."""
        return self.journal.exists() or self.trained

    @property
    def trained(self) -> bool:
        """Whether a trainer got somewhere here; a journal alone may be that of a hub which was started before it."""
        return _holds_something(self.checkpoints) or _holds_something(self.metrics)

    def log(self, process: str) -> Path:
        """Output of one process."""
        return self.logs / f"{process}.log"

    def prepare(self) -> None:
        """Creates what processes write into; only this user may look inside."""
        for directory in (self.root, self.hub, self.logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _holds_something(path: Path) -> bool:
    """A directory with an entry, or a file with a byte."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and path.stat().st_size > 0
