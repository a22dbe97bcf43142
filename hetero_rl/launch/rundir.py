"""Where everything of a run lies on disk."""

import dataclasses
import os
from pathlib import Path

__all__ = ["RunDirectory", "write_private"]


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
    def checkpoints(self) -> Path:
        """Checkpoints of the trainer, one directory for each."""
        return self.root / "checkpoints"

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
        """Whether a run was begun here: settings alone are none, so a start that failed can be repeated."""
        return self.journal.exists() or self.checkpoints.exists() or self.metrics.exists()

    def log(self, process: str) -> Path:
        """Output of one process."""
        return self.logs / f"{process}.log"

    def prepare(self) -> None:
        """Creates what processes write into; only this user may look inside."""
        for directory in (self.root, self.hub, self.logs):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Writes a file of mode 0600 in one piece: readers see the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
