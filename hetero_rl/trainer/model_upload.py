"""The files that workers need besides weights: uploaded when the run opens, and again when the hub has lost one.

    main thread    upload ──► kept: with ──────────── the run ────────────── end: sets `ended`, waits for the thread
    thread                        └─ every 10 s: does the hub have each file? no ──► put_blob

A file that was damaged on the hub's disk is found when a worker asks for it; the hub then forgets it, and workers that start
wait until it is there again. The thread only asks; what fails is tried the next time, and stops nothing.
"""

import logging
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hetero_rl.errors import HeteroRLError
from hetero_rl.trainer.patience import Patience
from hetero_rl.wire.messages import ModelFile
from hetero_rl.wire.ports import TrainingPort

__all__ = ["ModelUpload"]

_LOG = logging.getLogger(__name__)
_SECONDS = 10.0


class ModelUpload:
    """Keeps the model's files at the hub.

    Args:
        port: The hub.
        files: What workers need, and where it is.
        seconds: How often the hub is asked.
    """

    def __init__(
        self, port: TrainingPort, files: Sequence[tuple[ModelFile, Path]], seconds: float = _SECONDS
    ) -> None:
        self._port = port
        self._files = files
        self._seconds = seconds
        self._ended = threading.Event()

    def upload(self, patience: Patience) -> None:
        """Uploads what the hub does not have."""
        for file, path in self._files:
            patience(
                lambda file=file, path=path: self._port.put_blob(file.blob, iter([path.read_bytes()])),  # type: ignore[misc]  # defaults bind the loop variables
                f"uploading {file.name}",
            )

    @contextmanager
    def kept(self) -> Generator[None]:
        """Looks after the files while the block runs."""
        thread = threading.Thread(target=self._keep, name="model-files", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def renew(self) -> None:
        """Uploads again what the hub has lost; a failure is logged."""
        try:
            for file, path in self._files:
                self._port.put_blob(file.blob, _lost(file, path))
        except (HeteroRLError, OSError) as error:
            _LOG.warning("the hub could not be asked whether it has the model's files: %s", error)

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds):
            self.renew()


def _lost(file: ModelFile, path: Path) -> Iterator[bytes]:
    """The bytes of a file, read only when the hub wants them."""
    _LOG.warning("the hub has lost model file %s; it is uploaded again", file.name)
    yield path.read_bytes()
