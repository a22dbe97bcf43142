"""Files that are there whole or not at all."""

import os
from pathlib import Path

__all__ = ["make_directory", "sync_directory", "write_whole"]


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a text file in one piece: readers see the old text or the new one, also after a crash; durable at return.

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
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Makes a directory, and those above it, where they are missing, durably: what lies in it is lost with its name.

    Args:
        path: The directory.
    """
    missing = [each for each in path.parents if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    # Its own name also when it existed: who made it may have died before it was synced.
    for each in (path, *missing):
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: new, renamed and removed ones."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
