"""The thread that owns the model. Everything it does happens between two decoding steps.

    event loop                                   scheduler thread
    ──────────                                   ────────────────
    generate() ─┐                     ┌─► take in orders
    score()    ─┼─► orders (queue) ───┤   score, or load weights (in flight: now; drain: when no row runs)
    load()     ─┤                     │   drop groups whose future was cancelled
    close()    ─┘                     │   admit waiting groups while there is room
         ▲                            │   one step for all rows ──► ended rows ──► group complete?
         └──── concurrent futures ◄───┴───────────────────────────────────────────────┘

    Who waits: the thread on the order queue, only when nothing runs or waits; callers on their futures, never on a lock.
    Shutdown: a stop order, or an exception in the thread; either way every open future gets an EngineError, and every
    later order too.

Admission is first come, first served, by whole groups; a group larger than the engine goes in as room allows. All
groups that join between two steps share one prefill.
"""

import contextlib
import dataclasses
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

import torch

from hetero_rl.errors import BackendError, EngineError
from hetero_rl.wire.columns import int32_view
from hetero_rl.wire.messages import GenerateWork
from hetero_rl.worker.engine import Completion
from hetero_rl.worker.engines.transformers.forward import Forward
from hetero_rl.worker.engines.transformers.rows import RunningRows, Sample

__all__ = ["Scheduler"]

T = TypeVar("T")

_ADMISSION_SHARE = 8
"""Groups join once an eighth of the engine is free: one prefill for several groups costs hardly more than for one."""


@dataclasses.dataclass(slots=True, eq=False)
class _Group:
    """A group of completions that somebody waits for."""

    future: "Future[Sequence[Completion]]"
    waiting: deque[Sample]
    wanted: int
    finished: dict[int, Completion] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Score:
    future: "Future[list[torch.Tensor]]"
    sequences: Sequence[Sequence[int]]
    version: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Load:
    future: "Future[None]"
    apply: Callable[[], None]
    version: int


class _Stop:
    """The last order."""


class Scheduler:
    """Decodes all groups together on one thread.

    Args:
        build: Makes the model's forward pass; called on the thread. What it raises ends the thread.
        capacity: Most completions decoded at once.
        drain: Whether running completions end before weights are replaced.
        threads: CPU threads of torch; 0 leaves its choice.
    """

    def __init__(self, build: Callable[[], Forward], *, capacity: int, drain: bool, threads: int) -> None:
        self._build = build
        self._capacity = capacity
        self._drain = drain
        self._threads = threads
        self._orders: queue.SimpleQueue[_Group | _Score | _Load | _Stop] = queue.SimpleQueue()
        # Guards the two fields after it, which both threads touch.
        self._lock = threading.Lock()
        self._open: set[_Group] = set()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._groups: dict[int, _Group] = {}  # by id of each of its samples
        self._waiting: deque[_Group] = deque()
        self._loads: deque[_Load] = deque()
        self._rows: RunningRows
        self._forward: Forward
        self.ready: Future[None] = Future()
        self.loaded_version = 0
        self.generated_tokens = 0
        self.busy_seconds = 0.0

    # --- called on the event loop -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread; `ready` says when the model is there."""
        self._thread.start()

    def generate(self, work: GenerateWork) -> "Future[Sequence[Completion]]":
        """Orders the completions of a group; cancelling the future frees their places."""
        prompt = list(int32_view(work.prompt_token_ids))
        samples = deque(Sample(index, prompt, work.sampling) for index in work.sample_indices)
        group = _Group(Future(), samples, len(samples))
        with self._lock:
            self._open.add(group)
        group.future.add_done_callback(lambda _: self._forget(group))
        self._order(group)
        return group.future

    def _forget(self, group: _Group) -> None:
        with self._lock:
            self._open.discard(group)

    @property
    def unfinished_sequences(self) -> int:
        """Completions that somebody waits for and that have not ended."""
        with self._lock:
            return sum(group.wanted - len(group.finished) for group in self._open)

    def score(self, sequences: Sequence[Sequence[int]], version: int | None) -> "Future[list[torch.Tensor]]":
        """Orders log-probabilities of sequences, under exactly that version when it is not None."""
        order = _Score(Future(), sequences, version)
        self._order(order)
        return order.future

    def load(self, apply: Callable[[], None], version: int) -> "Future[None]":
        """Orders a change of weights, which `apply` makes."""
        order = _Load(Future(), apply, version)
        self._order(order)
        return order.future

    def close(self) -> None:
        """Ends the thread after its current step and waits for it."""
        self._orders.put(_Stop())
        if self._thread.is_alive():
            self._thread.join()

    def _order(self, order: _Group | _Score | _Load) -> None:
        with self._lock:
            if self._failure is None:
                self._orders.put(order)
                return
        order.future.set_exception(EngineError(self._failure))

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # ruff: ignore[blind-except] - whatever ends the thread must reach those who wait
            self._fail(f"the engine thread ended: {type(error).__name__}: {error}", error)
        else:
            self._fail("the engine is closed", None)

    def _serve(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        self._forward = self._build()
        self._rows = RunningRows(self._forward)
        self.ready.set_result(None)
        with torch.inference_mode():
            while self._turn():
                pass

    def _turn(self) -> bool:
        """What happens between two steps, and one step; False ends the thread."""
        if not self._take_orders():
            return False
        self._drop_cancelled()
        if self._loads and not (self._drain and len(self._rows)):
            self._load_weights()
        self._admit()
        if len(self._rows):
            self._step()
        return True

    def _take_orders(self) -> bool:
        idle = not (len(self._rows) or self._waiting or self._loads)
        while idle or not self._orders.empty():
            order = self._orders.get()
            idle = False
            match order:
                case _Stop():
                    return False
                case _Group():
                    self._waiting.append(order)
                case _Load():
                    self._loads.append(order)
                case _Score():
                    self._score(order)
        return True

    def _drop_cancelled(self) -> None:
        self._waiting = deque(group for group in self._waiting if not group.future.cancelled())
        unwanted = [sample for sample in self._rows.samples if self._groups[id(sample)].future.cancelled()]
        if unwanted:
            self._rows.remove(unwanted)
            for sample in unwanted:
                del self._groups[id(sample)]

    def _load_weights(self) -> None:
        # Whatever ended before this moment was sampled by the old version, whatever is sampled after by the new one.
        while self._loads:
            load = self._loads[0]
            if not load.future.cancelled():
                load.apply()
                self.loaded_version = load.version
                if len(self._rows):
                    self._timed(lambda: self._rows.recompute(self.loaded_version))
                _resolve(load.future, None)
            self._loads.popleft()

    def _admit(self) -> None:
        if self._loads:  # draining: nothing new starts with weights that are about to go
            return
        room = self._capacity - len(self._rows)
        if len(self._rows) and room < self._capacity // _ADMISSION_SHARE:
            return
        admitted: list[Sample] = []
        while self._waiting:
            group = self._waiting[0]
            share = min(len(group.waiting), self._capacity)
            if share > room:
                break
            for _ in range(share):
                sample = group.waiting.popleft()
                self._groups[id(sample)] = group
                admitted.append(sample)
            room -= share
            if not group.waiting:
                self._waiting.popleft()
        if admitted:
            self._timed(lambda: self._rows.admit(admitted, self.loaded_version))

    def _step(self) -> None:
        rows = len(self._rows)
        ended = self._timed(self._rows.step)
        self.generated_tokens += rows
        for sample, completion in ended:
            group = self._groups.pop(id(sample))
            group.finished[sample.sample_index] = completion
            if len(group.finished) == group.wanted:
                _resolve(group.future, [group.finished[index] for index in sorted(group.finished)])

    def _score(self, order: _Score) -> None:
        if order.version is not None and order.version != self.loaded_version:
            message = (
                f"scoring was wanted under version {order.version}, version {self.loaded_version} is loaded"
            )
            _refuse(order.future, BackendError(message))
        elif not order.future.cancelled():
            _resolve(order.future, self._forward.score(order.sequences))

    def _timed(self, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        self.busy_seconds += time.perf_counter() - started
        return result

    def _fail(self, message: str, cause: BaseException | None) -> None:
        with self._lock:
            self._failure = message
        error = EngineError(message)
        error.__cause__ = cause
        left: list[Future[Any]] = [self.ready]
        left += [group.future for group in (*self._groups.values(), *self._waiting)]
        left += [load.future for load in self._loads]
        while not self._orders.empty():
            order = self._orders.get()
            if not isinstance(order, _Stop):
                left.append(order.future)
        for future in left:
            _refuse(future, error)


def _resolve(future: "Future[T]", result: T) -> None:
    """Sets a result, unless the caller has gone."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result)


def _refuse(future: "Future[Any]", error: BaseException) -> None:
    """Sets an error, unless the future has its result or the caller has gone."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
