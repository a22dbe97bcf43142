"""One hub per run directory: an exclusive lock on a file that names who holds it."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from hetero_rl.errors import StorageError
from hetero_rl.files import make_directory

__all__ = ["RunLock"]


class RunLock:
    """Holds `directory` for this process until `release`; the kernel releases it when the process dies.

    Args:
        directory: The hub's part of a run directory; made if it does not exist.

    Raises:
        StorageError: Another process holds it; its pid is named.
    """

    def __init__(self, directory: Path) -> None:
        try:
            make_directory(directory)
            self._file = (directory / "lock").open("a+")
        except OSError as error:
            raise StorageError(f"{directory} cannot be used: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StorageError(
                f"another hub (pid {holder}) serves {directory}: stop it, or use another run directory"
            ) from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Lets the next hub in."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
