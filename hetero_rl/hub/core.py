"""One thread that runs every handler, inside transactions that many callers share.

      asyncio loop                                       core thread                          syncing thread
      servicer ── await core.run(handler) ──► inbox ──►  take everything that waits
        ▲                                                BEGIN
        │                                                  handler 1 ─ ok ─► result
        │                                                  handler 2 ─ refused ─► counted; it had written nothing
        │                                                  handler 3 ─ refused after it wrote ─► ROLLBACK, and all of
        │                                                                 them once more, each in a savepoint
        │                                                COMMIT ─────────────────────────────► one sync for all commits
        └── results, refusals, wake-ups by topic ◄──────────────────────────────────────────── that wait

While a transaction runs, the next calls gather in the inbox and share the next one; while the disk syncs, the next commits gather
and share the next sync (`syncing`). A result is seen outside only after the sync: an acknowledgement means that the data is on disk.

A savepoint copies every page that is written inside, and nearly all handlers check first and write afterwards. So savepoints
are for the second attempt, which undoes alone what is refused; handlers can run twice, as they do when the disk fails.

Who waits for whom: a servicer waits for its own call, never for another's; the thread waits for the inbox. A long poll is
not in this picture, it is a servicer that asks again when its topic changed (`Board`). When the disk fails, every call of
the transaction is tried once more by itself, so that those that write nothing still get their answer and the others get
the error. A journal that turns out to be damaged, or a sync that fails, ends the hub: `damage` is set, and whoever runs it is called.
Shutdown: `close` puts a last entry into the inbox; what was put before it is still answered; the thread then ends the syncing
thread and closes the store, and later calls are refused with SHUTTING_DOWN.
"""

import asyncio
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from hetero_rl.errors import (
    DamagedJournalError,
    FencedError,
    HeteroRLError,
    InvalidMessageError,
    RefusedError,
    StorageError,
)
from hetero_rl.failpoints import reach
from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.sync_note import MOST_UNSYNCED
from hetero_rl.hub.syncing import Syncing, SyncTally

__all__ = ["Board", "HubCore"]

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

_MOST_CALLS_PER_COMMIT = 256
_UNCOUNTED = {"RUN_NOT_OPEN"}  # a worker that waits for its trainer is no incident


class Board:
    """Where long polls wait for a topic. Lives on the event loop."""

    def __init__(self) -> None:
        self._generations = dict.fromkeys(Topic, 0)
        self._changed = asyncio.Event()
        self.closed = False

    def generation(self, topic: Topic) -> int:
        """A number that grows with every change of `topic`. Read it before asking the core."""
        return sum(self._generations[single] for single in topic)

    def post(self, topics: Topic) -> None:
        """Wakes who waits for one of `topics`."""
        for topic in topics:
            self._generations[topic] += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """Ends all waiting, now and later."""
        self.closed = True
        self.post(Topic(0))

    async def wait(self, topic: Topic, generation: int, until: float | None) -> bool:
        """Waits until `topic` has passed `generation`; False at loop time `until` or when the board is closed."""
        while not self.closed and self.generation(topic) == generation:
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return not self.closed


@dataclasses.dataclass(slots=True)
class _Call:
    name: str
    handler: Callable[[HubContext], Any]
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Transaction:
    """Calls that are to be answered together, and whom that wakes."""

    calls: Sequence[_Call]
    topics: Topic
    wrote: bool


_NOTHING = _Transaction((), Topic(0), wrote=False)


class _UndoneTogetherError(Exception):
    """A handler was refused after it had written, and there is no savepoint to go back to."""


class HubCore:
    """Runs handlers one after another over the store of `context`.

    Args:
        context: What the handlers work on. Nobody else may touch its store from now on.
        loop: Event loop of the servicers.
    """

    def __init__(self, context: HubContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closing = False
        self._careful = False
        self._thread = threading.Thread(target=self._work, name="hub-core", daemon=True)
        self.board = Board()
        self.damage: StorageError | None = None
        """What made the journal unusable, or left unknown what is on the disk: the hub must end."""
        self.when_damaged: Callable[[], object] = lambda: None
        """Called on the event loop once there is `damage`."""
        self._syncing: Syncing[_Transaction] = Syncing(
            context.store.sync, self._answer, self._answer_unsynced, MOST_UNSYNCED
        )
        self.writable = True
        """Whether the last attempt to write worked. Read by the health service."""
        self._thread.start()

    @property
    def syncs(self) -> SyncTally:
        """What waiting for the disk has cost so far."""
        return self._syncing.tally

    async def run(
        self, handler: Callable[Concatenate[HubContext, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs `handler(context, *args, **kwargs)`; returns its result once everything it wrote is durable.

        Raises:
            HeteroRLError: What the handler refused with; nothing of it was stored.
            DiskFullError: The disk is full; nothing of it was stored.
        """
        if self._closing:
            raise RefusedError("the hub is shutting down: come back when it runs again", "SHUTTING_DOWN")
        name = getattr(handler, "__name__", "")
        call = _Call(name, lambda context: handler(context, *args, **kwargs), self._loop.create_future())
        self._inbox.put(call)
        result: T = await call.done
        return result

    async def run_each(
        self, handler: Callable[[HubContext, A], T], arguments: Sequence[A]
    ) -> list[T | Exception]:
        """Runs `handler(context, argument)` for each argument; a refusal undoes and answers its own one alone.

        Raises:
            DiskFullError: The disk is full; nothing of all was stored.
        """

        def each(_context: HubContext) -> list[T | Exception]:
            return [self._isolated(handler, argument) for argument in arguments]

        each.__name__ = getattr(handler, "__name__", "")
        return await self.run(each)

    async def close(self) -> None:
        """Answers what is waiting, closes the store and ends the thread."""
        self._closing = True
        self.board.close()
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- in the core thread -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        going = True
        while going:
            calls, going = self._gather()
            if calls:
                self._serve(calls)
        self._syncing.close()
        try:
            self._context.store.close()
        except StorageError:
            _logger.exception("the journal could not be closed; it is recovered at the next start")

    def _gather(self) -> tuple[list[_Call], bool]:
        calls: list[_Call] = []
        entry = self._inbox.get()
        while entry is not None:
            calls.append(entry)
            if len(calls) == _MOST_CALLS_PER_COMMIT:
                return calls, True
            try:
                entry = self._inbox.get_nowait()
            except queue.Empty:
                return calls, True
        return calls, False

    def _serve(self, calls: Sequence[_Call]) -> None:
        self._syncing.make_room()
        wrote, failure = self._transact(calls)
        if failure is not None and len(calls) > 1:
            self._syncing.hand_over(_NOTHING, wrote=False)
            for call in calls:
                self._serve([call])
            return
        if failure is not None:
            calls[0].error = failure
        topics, self._context.changed = self._context.changed, Topic(0)
        told = _Transaction(calls, topics if failure is None else Topic(0), wrote)
        self._syncing.hand_over(told, wrote=wrote)

    def _transact(self, calls: Sequence[_Call]) -> tuple[bool, StorageError | None]:
        """Runs the calls in one transaction; says whether it wrote anything, and the error that undid all of them."""
        try:
            wrote = self._attempt(calls)
        except StorageError as error:
            _logger.warning("nothing was stored: %s", error)
            self._set_writable(works=False)
            self._undo()
            if isinstance(error, DamagedJournalError):
                self._loop.call_soon_threadsafe(self._give_up, error)
            return False, error
        if wrote:
            self._set_writable(works=True)
            _mark("after_commit_before_sync", calls)
        return wrote, None

    def _attempt(self, calls: Sequence[_Call]) -> bool:
        """Runs the calls and commits, with savepoints where there is something to undo; says whether anything was written."""
        try:
            return self._commit(calls)
        except (_UndoneTogetherError, ConflictError, InvalidMessageError):
            self._undo()
        self._careful = True
        try:
            return self._commit(calls)
        finally:
            self._careful = False

    def _commit(self, calls: Sequence[_Call]) -> bool:
        self._context.changed = Topic(0)
        self._context.store.begin()
        for call in calls:
            self._run_one(call)
        _mark("before_commit", calls)
        return self._context.store.commit()

    def _set_writable(self, *, works: bool) -> None:
        if works != self.writable:
            self.writable = works
            self._loop.call_soon_threadsafe(self.board.post, Topic.HEALTH)

    def _undo(self) -> None:
        try:
            self._context.store.rollback()
        except StorageError:
            _logger.exception("the failed transaction could not be rolled back")

    def _run_one(self, call: _Call) -> None:
        outcome = self._isolated(call.handler)
        failed = isinstance(outcome, Exception)
        call.result, call.error = (None, outcome) if failed else (outcome, None)

    def _isolated(
        self, handler: Callable[Concatenate[HubContext, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """What the handler returned or refused with; in the latter case nothing of it is left but a count."""
        store, changed = self._context.store, self._context.changed
        written = store.writes()
        try:
            if not self._careful:
                return handler(self._context, *args, **kwargs)
            with store.nested():
                return handler(self._context, *args, **kwargs)
        except (StorageError, _UndoneTogetherError):
            raise  # the whole transaction is in doubt
        except Exception as error:  # goes to the caller; one bad call must not end the hub
            if not self._careful and store.writes() != written:
                raise _UndoneTogetherError from error
            self._context.changed = changed
            self._count_refusal(error)
            return error

    def _count_refusal(self, error: Exception) -> None:
        name = counter_of(error)
        if name:
            self._context.store.count(name)

    # --- in the syncing thread, or the core thread where nothing is to be synced -------------------------------------

    def _answer(self, transaction: _Transaction) -> None:
        if transaction.wrote:
            _mark("after_commit_before_ack", transaction.calls)
        if transaction.calls:
            self._loop.call_soon_threadsafe(self._deliver, transaction.calls, transaction.topics)

    def _answer_unsynced(self, transaction: _Transaction, failure: StorageError) -> None:
        for call in transaction.calls:
            call.error = failure
        self._loop.call_soon_threadsafe(self._deliver, transaction.calls, Topic(0))
        self._loop.call_soon_threadsafe(self._give_up, failure)

    # --- on the event loop ------------------------------------------------------------------------------------------

    def _give_up(self, damage: StorageError) -> None:
        if self.damage is None:
            self.damage = damage
            self.when_damaged()

    def _deliver(self, calls: Sequence[_Call], topics: Topic) -> None:
        for call in calls:
            if call.done.done():
                continue  # its caller went away
            if call.error is not None:
                call.done.set_exception(call.error)
            else:
                call.done.set_result(call.result)
        if topics:
            self.board.post(topics)


def _mark(place: str, calls: Sequence[_Call]) -> None:
    """Failpoints PLACE:HANDLER of the calls that were not refused."""
    for call in calls:
        if call.error is None:
            reach(f"{place}:{call.name}")


def counter_of(error: Exception) -> str | None:
    """Name of the counter that a refusal adds to; None for what is not counted."""
    if isinstance(error, FencedError):
        return "refused_fenced"
    if isinstance(error, InvalidMessageError):
        # The field says what was wrong with a trajectory: its log-probabilities, its lengths, its versions.
        field = f"_{error.field}" if error.field else ""
        return f"refused_{error.reason.lower()}{field}"
    if isinstance(error, RefusedError):
        return None if error.reason in _UNCOUNTED else f"refused_{error.reason.lower()}"
    return None if isinstance(error, HeteroRLError) else "faults_of_the_hub"
