"""Rewards from grader processes: model text is hostile, so nothing of it is judged in the trainer.

    grade() threads ──item──► idle processes (queue) ──frame──► grader process: scorer, under kernel limits
           ▲                        ▲                                │ reward in time ──► back to idle
           └──── Grade ─────────────┴── fresh process ◄── kill ◄─────┘ too late or dead ──► reward 0, counted

A thread that calls `grade` takes an idle process, or waits for one; it alone talks to it until it hands it back.
`close` takes every process out of the queue, so it waits for calls under way, at most one time limit each.
Messages are length-prefixed JSON over a socket pair; standard input is closed, the environment is cut down.
"""

import dataclasses
import enum
import functools
import logging
import os
import queue
import socket
import subprocess  # ruff: ignore[suspicious-subprocess-import] arguments are a list built here; no shell
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from hetero_rl.errors import TaskError
from hetero_rl.tasks.frames import FrameError, receive_frame, send_frame

__all__ = ["Grade", "GradeRequest", "Grader", "GradingOutcome"]

START_SECONDS = 120.0
"""How long a grader process may take to import its libraries on a busy machine."""
_logger = logging.getLogger(__name__)

KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME")
"""What a grader process sees of the environment: no tokens, no proxies."""


class GradingOutcome(enum.Enum):
    """How a completion came by its reward."""

    GRADED = "graded"
    TIMED_OUT = "timed_out"
    """The scorer took longer than the limit; reward 0, the process was replaced."""
    CRASHED = "crashed"
    """The process died, for example of a kernel limit; reward 0, the process was replaced."""
    FAILED = "failed"
    """The scorer raised; reward 0."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradeRequest:
    """A completion to be graded."""

    payload: bytes
    """`TaskItem.payload` of its prompt."""
    completion: str
    """The completion's text without special tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grade:
    """The reward of one completion, 0 where the grader could not tell."""

    reward: float
    outcome: GradingOutcome = GradingOutcome.GRADED
    detail: str = ""
    """What went wrong, for people."""

    @property
    def correct(self) -> bool:
        """Whether it earned the full reward: what held-out exact match counts."""
        return self.reward >= 1.0


class Grader:
    """A pool of grader processes with one scorer. Safe to use from several threads.

    Args of the constructor:
        scorer: `Task.scorer`.
        processes: How many processes, started once.
        time_limit: Seconds for one completion.
        memory_bytes: Address space of one process.

    Example::

        with Grader(task.scorer, processes=2) as grader:
            grades = grader.grade([GradeRequest(payload=item.payload, completion="42")])
    """

    def __init__(
        self,
        scorer: Mapping[str, Any],
        *,
        processes: int = 1,
        time_limit: float = 5.0,
        memory_bytes: int = 2 * 2**30,
    ) -> None:
        """Starts the processes; they load their libraries while the caller goes on."""
        self._setup = {"scorer": dict(scorer), "time_limit": time_limit, "memory_bytes": memory_bytes}
        self._time_limit = time_limit
        self._size = processes
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = False
        self._idle: queue.Queue[_GraderProcess] = queue.Queue()
        for _ in range(processes):
            self._idle.put(_GraderProcess(self._setup))
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="grading")

    def grade(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Grades completions, in order.

        Raises:
            TaskError: If a grader process cannot start, with its reason, or the grader is closed.
        """
        if self._closed:
            raise TaskError("this grader is closed")
        grades = list(self._threads.map(self._grade_one, requests))
        with self._lock:
            self._counts.update(grade.outcome.value for grade in grades)
        return grades

    @property
    def counts(self) -> Mapping[str, int]:
        """How many completions had each `GradingOutcome` since the start, by its value."""
        with self._lock:
            return {outcome.value: self._counts[outcome.value] for outcome in GradingOutcome}

    def close(self) -> None:
        """Ends the processes. Safe to repeat."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        for _ in range(self._size):
            self._idle.get().end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _grade_one(self, request: GradeRequest) -> Grade:
        process = self._idle.get()
        try:
            grade = process.grade(request, self._time_limit)
        except BaseException:
            self._idle.put(self._replace(process))
            raise
        usable = grade.outcome in {GradingOutcome.GRADED, GradingOutcome.FAILED}
        self._idle.put(process if usable else self._replace(process))
        return grade

    def _replace(self, process: "_GraderProcess") -> "_GraderProcess":
        process.end()
        return _GraderProcess(self._setup)


class _GraderProcess:
    """One process and this side's end of its socket pair; used by one thread at a time."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hetero_rl.tasks.grading_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_reduced_environment(),
                start_new_session=True,
            )
        self._ready = False
        send_frame(self._connection, setup)

    def grade(self, request: GradeRequest, time_limit: float) -> Grade:
        """Grades one completion; the outcome says when the process is no longer of use."""
        self._await_ready()
        message = {"payload": request.payload.decode(), "completion": request.completion}
        try:
            self._connection.settimeout(time_limit)
            send_frame(self._connection, message)
            reply = receive_frame(self._connection, time_limit)
        except TimeoutError:
            return Grade(0.0, GradingOutcome.TIMED_OUT, f"no reward within {time_limit:g} s")
        except FrameError as error:
            return Grade(0.0, GradingOutcome.CRASHED, f"the grader process died: {error}")
        if "error" in reply:
            return Grade(0.0, GradingOutcome.FAILED, reply["error"])
        return Grade(float(reply["reward"]))

    def end(self) -> None:
        """Kills the process and forgets it."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            reply = receive_frame(self._connection, START_SECONDS)
        except TimeoutError as error:
            raise TaskError(f"a grader process was not ready within {START_SECONDS:g} s") from error
        except FrameError as error:
            raise TaskError(
                f"a grader process ended while it started ({error}); is hetero-rl[tasks] installed?"
            ) from error
        if "error" in reply:
            raise TaskError(f"the grader cannot load its scorer: {reply['error']}")
        if not reply.get("confined"):
            _warn_unconfined()
        self._ready = True


@functools.cache
def _warn_unconfined() -> None:
    _logger.warning(
        "graders keep access to the network and to files: this kernel or processor does not let them give it up"
    )


def _reduced_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
