"""Files that are there whole or not at all."""

import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a text file in one piece: readers see the old text or the new one, also after a crash.

    Args:
        path: The file; replaced when it exists.
        text: Its new content.
        mode: Permissions; nobody but the owner unless told otherwise.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
