"""Keeps one process running: starts it, waits for its end on a thread of its own, starts it again or gives up.

    start() ──► thread: ┌► wait for the end ──► closing? ── yes ──► done
                        │                          │ no
                        │             left on its own, may it? ── yes ──► on_end(keeper)
                        │                          │ no
                        │             policy: delay or give up ── give up ──► on_end(keeper)
                        └──── start again ◄── wait for the delay, or for close()

close() sets `closing`, asks the process to end, waits for its grace, kills what is left and joins the thread.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from hetero_rl.errors import StorageError
from hetero_rl.launch.process import ManagedProcess, ProcessSpec, log_tail
from hetero_rl.launch.restart import RestartPolicy

__all__ = ["Keeper", "Kept"]


class Kept(Protocol):
    """A process that somebody keeps running, here or on another node."""

    @property
    def ended(self) -> bool:
        """Whether it ended for good although nobody asked for it."""

    def describe(self, complaint: str) -> str:
        """What is wrong with it, for people, with the end of its log; `complaint` unless it has ended."""

    def request_stop(self) -> None:
        """Asks the process to end; it is not started again."""

    def close(self, grace: float) -> None:
        """Ends the process within `grace` seconds."""

    def kill(self) -> None:
        """Kills the process at once; it is not started again."""


class Keeper:
    """One kept process.

    Args:
        spec: Makes what to start; called before every start, so a restart may differ from the first start.
        policy: When a restart is worth it.
        notify: Takes a sentence for people.
        on_end: Called once, on the keeper's thread, when the process ended for good and nobody asked for it.
        may_leave: Whether exit code 0 is an end for good; otherwise it is a death like any other.
    """

    def __init__(
        self,
        spec: Callable[[], ProcessSpec],
        policy: RestartPolicy,
        notify: Callable[[str], None],
        on_end: "Callable[[Keeper], None]",
        *,
        may_leave: bool,
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._notify = notify
        self._on_end = on_end
        self._may_leave = may_leave
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self.process: ManagedProcess | None = None
        self.restarts = 0
        self.given_up = False
        self.ended = False

    def start(self) -> ManagedProcess:
        """Starts the process and begins to watch it."""
        process = self.process = ManagedProcess(self._spec())
        self._thread.name = f"keeper-{process.spec.name}"
        self._thread.start()
        return process

    def describe(self, complaint: str) -> str:
        """What is wrong with the process, for people; `complaint` unless it has ended."""
        process = self.process
        if process is None:
            return f"a process {complaint}"
        what = process.describe_exit() if self.ended else complaint
        return f"{process.spec.name} {what}. The end of {process.spec.log}:\n{log_tail(process.spec.log)}"

    def request_stop(self) -> None:
        """Asks the process to end; it is not started again."""
        self._closing.set()
        with self._starting:
            if self.process is not None:
                self.process.request_stop()

    def close(self, grace: float) -> None:
        """Ends the process within `grace` seconds."""
        self.request_stop()
        if self.process is not None:
            self.process.stop(grace)
            self._thread.join()

    def kill(self) -> None:
        """Kills the process at once; it is not started again."""
        self._closing.set()
        with self._starting:
            if self.process is not None:
                self.process.kill()

    def _keep(self) -> None:
        deaths = 0
        process = self.process
        while process is not None:
            code = process.wait() or 0
            if self._closing.is_set():
                return
            if code == 0 and self._may_leave:
                break
            deaths = self._policy.deaths_after(deaths, time.monotonic() - process.started_at)
            delay = self._policy.delay(deaths, code)
            if delay is None:
                self.given_up = True
                break
            self._notify(f"{process.spec.name} {process.describe_exit()}; starting it again in {delay:g} s")
            if self._closing.wait(delay):
                return
            process = self._start_again(process)
        if not self._closing.is_set():
            self.ended = True
            self._on_end(self)

    def _start_again(self, dead: ManagedProcess) -> ManagedProcess | None:
        dead.close()
        # Without the lock a request_stop between the check and the start would miss the new process.
        with self._starting:
            if self._closing.is_set():
                return None
            try:
                self.process = ManagedProcess(self._spec())
            except StorageError as error:
                self._notify(str(error))
                self.given_up = True
                return None
            self.restarts += 1
            return self.process
