"""One child process: its log file, the pipe that ties its life to ours, and an end within a stated time.

  parent                                child (a session of its own: Ctrl-C reaches only the parent)
┌─────────┐  write end, never written  ┌──────────────────────────────────────────────┐
│ ManagedProcess ──── lifeline ───────►│ stdin: end of file = the parent is gone       │
│         │◄──────── RUN/logs/NAME.log─│ stdout, stderr                                │
└─────────┘                            └──────────────────────────────────────────────┘

stop: SIGTERM ──► drains ──► exits; not within the grace: SIGKILL to the child's own process group
"""

import contextlib
import dataclasses
import os
import signal
import subprocess  # ruff: ignore[suspicious-subprocess-import] arguments are lists built here; no shell
import time
from collections.abc import Mapping
from pathlib import Path

from hetero_rl.errors import StorageError

__all__ = ["ManagedProcess", "ProcessSpec", "log_tail"]

TAIL_BYTES = 16_384


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to start."""

    name: str
    """Name of the process; its log is RUN/logs/NAME.log."""
    arguments: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Added to this process's own environment."""


class ManagedProcess:
    """A running child process. It drains and ends when this process ends, whatever ends it."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.started_at = time.monotonic()
        try:
            with spec.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    spec.arguments,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise StorageError(f"{spec.name} cannot be started with log {spec.log}: {error}") from error

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative for a signal, None while it runs."""
        return self._popen.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for its end; None when it still runs after `timeout` seconds."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def request_stop(self) -> None:
        """Asks it to drain and end."""
        if self.exit_code is None:
            self._popen.terminate()

    def stop(self, grace: float) -> int:
        """Ends it: asks, waits up to `grace` seconds, then kills what is left of its process group."""
        self.request_stop()
        code = self.wait(grace)
        if code is None:
            self.kill()
            code = self._popen.wait()
        self.close()
        return code

    def kill(self) -> None:
        """Kills it and what it started, at once."""
        # The child leads a session of its own, so its process group holds nothing that is not its own; while it is
        # not reaped its id cannot belong to anybody else.
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Lets go of the lifeline."""
        if self._popen.stdin is not None:
            # A child that died leaves a pipe without reader; nothing was written to it.
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()

    def describe_exit(self) -> str:
        """How it ended, for people."""
        code = self.exit_code
        if code is None:
            return "is running"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def log_tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented to stand below an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"  (no log at {log})"
    kept = text.splitlines()[-lines:]
    return "\n".join(f"  | {line}" for line in kept) if kept else f"  ({log} is empty)"
