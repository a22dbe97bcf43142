"""How device detection looks at a machine: files, device nodes and a vendor's own tool, never a vendor's Python module.

Importing a vendor module in the wrong place breaks more than itself: torch_npu without its toolkit makes `import torch`
fail. Files below a root directory stand for a recorded machine in tests.
"""

import dataclasses
import os
import re
import shutil
import subprocess  # ruff: ignore[suspicious-subprocess-import] arguments are lists built here; no shell
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Host", "run_tool", "version_tuple"]

_TOOL_SECONDS = 20.0
_MOST_TEXT = 2**20
_PROGRAM_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin")
_LISTEN = "0A"
"""State of a listening socket in Linux's own tables."""


def run_tool(arguments: Sequence[str]) -> str | None:
    """What a vendor's tool prints; None when it is not installed, fails or hangs."""
    program = shutil.which(arguments[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *arguments[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")[:_MOST_TEXT] if done.returncode == 0 else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine as detection sees it."""

    root: Path = Path("/")
    """Where its files lie; device nodes are plain files in a recorded machine."""
    run: Callable[[Sequence[str]], str | None] = run_tool
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)

    def path(self, name: str) -> Path:
        """An absolute path of the machine below the root."""
        return self.root / name.lstrip("/")

    def exists(self, name: str) -> bool:
        """Whether a file, node or directory is there."""
        return self.path(name).exists()

    def has_program(self, name: str) -> bool:
        """Whether a program is where systems keep them."""
        return any(self.exists(f"{directory}/{name}") for directory in _PROGRAM_DIRECTORIES)

    def listening_ports(self) -> tuple[int, ...]:
        """TCP ports that somebody listens on, in this process's network."""
        lines = [
            line.split()
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for line in self.read(table).splitlines()[1:]
        ]
        ports = {
            int(parts[1].rpartition(":")[2], 16) for parts in lines if len(parts) > 3 and parts[3] == _LISTEN
        }
        return tuple(sorted(ports))

    def usable(self, name: str) -> bool:
        """Whether this process may read and write a node."""
        return os.access(self.path(name), os.R_OK | os.W_OK)

    def read(self, name: str) -> str:
        """The text of a file; empty when it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(_MOST_TEXT).decode(errors="replace")
        except OSError:
            return ""

    def glob(self, directory: str, pattern: str) -> tuple[str, ...]:
        """Absolute paths in a directory by a pattern, numbers in their order."""
        found = self.path(directory).glob(pattern)
        return tuple(
            f"/{path.relative_to(self.root)}" for path in sorted(found, key=lambda path: _natural(str(path)))
        )


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text))


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "580.82.07" is (580, 82, 7), "8.2.RC1" is (8, 2)."""
    found = re.match(r"\D*(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found.group(1).split("."))) if found else ()
