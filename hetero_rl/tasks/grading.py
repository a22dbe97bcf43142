"""Rewards from grader processes: model text is hostile, so nothing of it is judged in the trainer.

    submit() ──bundle──► threads ──► idle processes (queue) ──frame──► grader process: scorer, under kernel limits
                            ▲               ▲                            │ a reply for each, in time ──► back to idle
     PendingGrades ◄────────┘               └── fresh process ◄── kill ◄─┘ too late or dead ──► reward 0, counted

A bundle holds completions of one prompt and goes in one frame; each of them is answered, and limited in time, by itself. A
prompt's completions are one bundle, or as many as there are idle processes. What a process that died or hung had not answered but
for the one at fault goes to a fresh one. A thread takes an idle process, or waits for one; it alone talks to it until it hands it
back. `close` takes every process out of the queue, so it waits for completions under way, at most one time limit each.
Messages are length-prefixed JSON over a socket pair; standard input is closed, the environment is cut down.
"""

import dataclasses
import enum
import functools
import itertools
import logging
import os
import queue
import socket
import subprocess  # ruff: ignore[suspicious-subprocess-import] arguments are a list built here; no shell
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from hetero_rl.errors import TaskError
from hetero_rl.tasks.frames import FrameError, receive_frame, send_frame

__all__ = ["Grade", "GradeRequest", "Grader", "GradingOutcome", "PendingGrades"]

START_SECONDS = 120.0
"""How long a grader process may take to import its libraries on a busy machine."""
_FRAME_CHARACTERS = 2**20
"""Of completions in one frame: at most twelve times as many bytes as JSON, below the limit of a frame."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class PendingGrades:
    """Grades that are being made."""

    _parts: "tuple[Future[list[Grade]], ...]"

    def result(self) -> list[Grade]:
        """Waits for them, in the order of the requests; raises TaskError as `Grader.grade` does."""
        return [grade for part in self._parts for grade in part.result()]


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
        self._closed = threading.Event()
        self._idle: queue.Queue[_GraderProcess] = queue.Queue()
        for _ in range(processes):
            self._idle.put(_GraderProcess(self._setup))
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="grading")

    def grade(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        """Grades completions, in order.

        Raises:
            TaskError: If a grader process cannot start, with its reason, or the grader is closed.
        """
        return self.submit(requests).result()

    def submit(self, requests: Sequence[GradeRequest]) -> PendingGrades:
        """Begins to grade completions; those of one prompt that follow each other go to a process together.

        Raises:
            TaskError: If the grader is closed.
        """
        if self._closed.is_set():
            raise TaskError("this grader is closed")
        bundles = _bundles(requests, max(1, self._idle.qsize()))
        return PendingGrades(tuple(self._threads.submit(self._grade_bundle, bundle) for bundle in bundles))

    @property
    def counts(self) -> Mapping[str, int]:
        """How many completions had each `GradingOutcome` since the start, by its value."""
        with self._lock:
            return {outcome.value: self._counts[outcome.value] for outcome in GradingOutcome}

    def close(self) -> None:
        """Ends the processes. Safe to repeat."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for _ in range(self._size):
            self._idle.get().end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _grade_bundle(self, bundle: Sequence[GradeRequest]) -> list[Grade]:
        """Grades completions of one prompt, with as many processes one after another as it takes."""
        grades: list[Grade] = []
        while len(grades) < len(bundle):
            if self._closed.is_set():
                raise TaskError("this grader is closed")
            process = self._idle.get()
            usable = False
            try:
                for grade in process.grade(bundle[len(grades) :], self._time_limit):
                    grades.append(grade)
                    usable = grade.outcome in {GradingOutcome.GRADED, GradingOutcome.FAILED}
                    if self._closed.is_set() and len(grades) < len(bundle):
                        usable = False  # it is at what nobody wants any more
                        break
            finally:
                self._idle.put(process if usable else self._replace(process))
        with self._lock:
            self._counts.update(grade.outcome.value for grade in grades)
        return grades

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

    def grade(self, requests: Sequence[GradeRequest], time_limit: float) -> Iterator[Grade]:
        """Grades completions of one prompt, each within the time limit.

        Yields:
            A grade for each; none after one whose outcome says that the process is no longer of use.
        """
        self._await_ready()
        completions = [request.completion for request in requests]
        for frame in _by_characters(completions):
            message = {"payload": requests[0].payload.decode(), "completions": frame}
            try:
                self._connection.settimeout(time_limit)
                send_frame(self._connection, message)
            except TimeoutError:
                yield _too_late(time_limit)
                return
            except FrameError as error:
                yield _crashed(error)
                return
            for _ in frame:
                grade = self._next_grade(time_limit)
                yield grade
                if grade.outcome in {GradingOutcome.TIMED_OUT, GradingOutcome.CRASHED}:
                    return

    def _next_grade(self, time_limit: float) -> Grade:
        try:
            reply = receive_frame(self._connection, time_limit)
        except TimeoutError:
            return _too_late(time_limit)
        except FrameError as error:
            return _crashed(error)
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


def _too_late(time_limit: float) -> Grade:
    return Grade(0.0, GradingOutcome.TIMED_OUT, f"no reward within {time_limit:g} s")


def _crashed(error: FrameError) -> Grade:
    return Grade(0.0, GradingOutcome.CRASHED, f"the grader process died: {error}")


def _bundles(requests: Sequence[GradeRequest], idle: int) -> Iterator[Sequence[GradeRequest]]:
    """Neighbours with one prompt, cut into parts where there are fewer prompts than idle processes."""
    prompts = [list(same) for _, same in itertools.groupby(requests, lambda request: request.payload)]
    parts = max(1, idle // max(1, len(prompts)))
    for same in prompts:
        length = -(-len(same) // parts)
        yield from (same[start : start + length] for start in range(0, len(same), length))


def _by_characters(completions: Iterable[str]) -> Iterator[list[str]]:
    """Completions that go in one frame; one that is longer than a frame's share goes alone."""
    frame: list[str] = []
    characters = 0
    for completion in completions:
        if frame and characters + len(completion) > _FRAME_CHARACTERS:
            yield frame
            frame, characters = [], 0
        frame.append(completion)
        characters += len(completion)
    if frame:
        yield frame


@functools.cache
def _warn_unconfined() -> None:
    _logger.warning(
        "graders keep access to the network and to files: this kernel or processor does not let them give it up"
    )


def _reduced_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
