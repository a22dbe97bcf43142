"""One thread, many callers, one commit."""

import asyncio
import contextlib

import pytest

from hetero_rl.errors import DamagedJournalError, DiskFullError, RefusedError, StorageError
from hetero_rl.hub.clock import SystemClock
from hetero_rl.hub.core import Board, HubCore
from hetero_rl.hub.handlers.context import HubContext, HubSettings, Topic
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.hub.stores.sqlite_store import SqliteStore

pytestmark = pytest.mark.asyncio


class CountingStore(MemoryStore):
    """Counts commits, and fails them when told to."""

    def __init__(self):
        super().__init__()
        self.commits = 0
        self.full = False

    def commit(self):
        self.commits += 1
        if self.full and self._tables != self._before:
            raise DiskFullError("full")
        return super().commit()


@contextlib.asynccontextmanager
async def running_core(store):
    context = HubContext(store, SystemClock(), HubSettings(), MemoryBlobStore())
    core = HubCore(context, asyncio.get_running_loop())
    try:
        yield core
    finally:
        await core.close()


def bump(context, counter, amount=1):
    context.store.count(counter, amount)
    return context.store.counters()[counter]


def refuse(context):
    context.store.count("lost")
    raise RefusedError("no", "LEASE_LOST")


def counters(context):
    return dict(context.store.counters())


class Gate:
    """A handler that holds the core thread until the test lets it go."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._entered = asyncio.Event()
        self._release = asyncio.Event()

    def __call__(self, context):
        self._loop.call_soon_threadsafe(self._entered.set)
        asyncio.run_coroutine_threadsafe(self._release.wait(), self._loop).result(100)

    async def entered(self):
        await asyncio.wait_for(self._entered.wait(), 100)

    def release(self):
        self._release.set()


async def test_a_call_returns_its_result():
    async with running_core(MemoryStore()) as core:
        assert await core.run(bump, "a") == 1
        assert await core.run(bump, "a", amount=4) == 5


async def test_calls_that_wait_together_share_one_commit():
    store = CountingStore()
    async with running_core(store) as core:
        gate = Gate()
        blocked = asyncio.create_task(core.run(gate))
        await gate.entered()
        before = store.commits
        calls = [asyncio.create_task(core.run(bump, "a")) for _ in range(20)]
        await asyncio.sleep(0)  # every call is in the inbox
        gate.release()
        results = await asyncio.gather(*calls)
        await blocked
        assert results == list(range(1, 21))
        assert store.commits == before + 2  # the gate's own, and one for all the others


async def test_a_refused_call_is_undone_alone_and_counted():
    async with running_core(MemoryStore()) as core:
        gate = Gate()
        blocked = asyncio.create_task(core.run(gate))
        await gate.entered()
        calls = [
            asyncio.create_task(core.run(handler, *rest))
            for handler, *rest in [(bump, "a"), (refuse,), (bump, "a")]
        ]
        await asyncio.sleep(0)
        gate.release()
        first, refused, last = await asyncio.gather(*calls, return_exceptions=True)
        await blocked
        assert (first, last) == (1, 2)
        assert refused.reason == "LEASE_LOST"
        assert await core.run(counters) == {"a": 2, "refused_lease_lost": 1}


def bump_or_refuse(context, name):
    if name == "bad":
        return refuse(context)
    context.notify(Topic.WORK)
    return bump(context, name)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_one_refused_of_several_is_undone_alone_and_the_others_count_once(kind, tmp_path):
    async with running_core(store_of(kind, tmp_path)) as core:
        first, refused, second, again = await core.run_each(bump_or_refuse, ["a", "bad", "a", "bad"])
        assert (first, second) == (1, 2)
        assert (refused.reason, again.reason) == ("LEASE_LOST", "LEASE_LOST")
        assert await core.run(counters) == {"a": 2, "refused_lease_lost": 2}


def store_of(kind, tmp_path):
    return MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "journal.sqlite")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_calls_that_share_a_transaction_with_one_that_wrote_and_was_refused_count_once(kind, tmp_path):
    async with running_core(store_of(kind, tmp_path)) as core:
        gate = Gate()
        blocked = asyncio.create_task(core.run(gate))
        await gate.entered()
        calls = [
            asyncio.create_task(core.run(bump, "a")),
            asyncio.create_task(core.run(refuse)),
            asyncio.create_task(core.run_each(bump_or_refuse, ["a", "bad", "b"])),
        ]
        await asyncio.sleep(0)
        gate.release()
        first, refused, (second, also_refused, other) = await asyncio.gather(*calls, return_exceptions=True)
        await blocked
        assert (first, second, other) == (1, 2, 1)
        assert (refused.reason, also_refused.reason) == ("LEASE_LOST", "LEASE_LOST")
        assert await core.run(counters) == {"a": 2, "b": 1, "refused_lease_lost": 2}


async def test_a_refusal_before_anything_was_written_makes_nobody_run_twice(tmp_path):
    runs = []

    def refuse_odd(context, number):
        runs.append(number)
        if number % 2:
            raise RefusedError("no", "LEASE_LOST")
        return bump(context, "even")

    async with running_core(SqliteStore(tmp_path / "journal.sqlite")) as core:
        outcomes = await core.run_each(refuse_odd, range(4))
        assert runs == [0, 1, 2, 3]
        assert [outcomes[0], outcomes[2]] == [1, 2]
        assert await core.run(counters) == {"even": 2, "refused_lease_lost": 2}


async def test_a_row_that_the_journal_cannot_hold_is_refused_alone_though_it_was_put_off(tmp_path):
    def add(context, amount):
        journal = context.store._journal
        journal.put_off("INSERT INTO counters VALUES (?, ?)", (f"row {amount}", amount))
        return amount

    async with running_core(SqliteStore(tmp_path / "journal.sqlite")) as core:
        first, refused, last = await core.run_each(add, [1, 2**63, 3])
        assert (first, last) == (1, 3)
        assert refused.reason == "INVALID_FIELD"
        assert await core.run(counters) == {"refused_invalid_field": 1, "row 1": 1, "row 3": 3}


async def test_several_of_which_one_is_refused_still_wake_who_waits():
    async with running_core(MemoryStore()) as core:
        before = core.board.generation(Topic.WORK)
        await core.run_each(bump_or_refuse, ["a", "bad"])
        assert core.board.generation(Topic.WORK) > before


async def test_a_fault_of_one_handler_reaches_its_caller_and_the_core_goes_on():
    async with running_core(MemoryStore()) as core:
        with pytest.raises(ZeroDivisionError):
            await core.run(lambda context: 1 / 0)
        assert await core.run(counters) == {"faults_of_the_hub": 1}


async def test_a_full_disk_refuses_what_writes_and_answers_what_reads():
    store = CountingStore()
    async with running_core(store) as core:
        await core.run(bump, "a")
        gate = Gate()
        blocked = asyncio.create_task(core.run(gate))
        await gate.entered()
        store.full = True
        calls = [
            asyncio.create_task(core.run(handler, *rest)) for handler, *rest in [(bump, "a"), (counters,)]
        ]
        await asyncio.sleep(0)
        gate.release()
        written, read = await asyncio.gather(*calls, return_exceptions=True)
        await blocked
        assert isinstance(written, DiskFullError)
        assert read == {"a": 1}
        assert not core.writable
        store.full = False
        assert await core.run(bump, "a") == 2
        assert core.writable


async def test_a_full_disk_under_sqlite_leaves_the_journal_intact(tmp_path):
    store = SqliteStore(tmp_path / "journal.sqlite")
    (pages,) = store._journal.row("PRAGMA page_count")
    async with running_core(store) as core:
        await core.run(bump, "a")

        def limit(context):
            context.store._journal.row(f"PRAGMA max_page_count={pages + 1}")

        def fill(context):
            for number in range(1000):
                context.store.add_event(0.0, "kind", "", f"{number}" * 1000)

        await core.run(limit)
        with pytest.raises(DiskFullError):
            await core.run(fill)
        assert not core.writable
        assert await core.run(bump, "a") == 2
        assert core.writable


async def test_after_close_calls_are_refused():
    async with running_core(MemoryStore()) as core:
        await core.close()
        with pytest.raises(RefusedError) as caught:
            await core.run(counters)
        assert caught.value.reason == "SHUTTING_DOWN"


async def test_close_answers_what_was_asked_before():
    async with running_core(MemoryStore()) as core:
        calls = [asyncio.create_task(core.run(bump, "a")) for _ in range(3)]
        await asyncio.sleep(0)
        await core.close()
        assert await asyncio.gather(*calls) == [1, 2, 3]


async def test_a_caller_that_went_away_disturbs_nobody():
    async with running_core(MemoryStore()) as core:
        gate = Gate()
        blocked = asyncio.create_task(core.run(gate))
        await gate.entered()
        gone = asyncio.create_task(core.run(bump, "a"))
        stays = asyncio.create_task(core.run(bump, "a"))
        await asyncio.sleep(0)
        gone.cancel()
        gate.release()
        await blocked
        assert await stays == 2


async def test_waiters_hear_of_a_change_once_it_is_durable():
    async with running_core(MemoryStore()) as core:
        generation = core.board.generation(Topic.WORK)
        waiter = asyncio.create_task(core.board.wait(Topic.WORK, generation, None))
        await core.run(lambda context: context.notify(Topic.WORK))
        assert await asyncio.wait_for(waiter, 100)


async def test_a_refused_call_wakes_nobody():
    def notify_and_refuse(context):
        context.notify(Topic.WORK)
        raise RefusedError("no", "NOT_FOUND")

    async with running_core(MemoryStore()) as core:
        generation = core.board.generation(Topic.WORK)
        with pytest.raises(RefusedError):
            await core.run(notify_and_refuse)
        assert core.board.generation(Topic.WORK) == generation


async def test_a_wait_ends_at_its_time_or_when_the_board_closes():
    board = Board()
    loop = asyncio.get_running_loop()
    assert not await board.wait(Topic.WORK, board.generation(Topic.WORK), loop.time())
    waiter = asyncio.create_task(board.wait(Topic.WORK, board.generation(Topic.WORK), None))
    await asyncio.sleep(0)
    board.close()
    assert not await waiter


async def test_a_change_between_asking_and_waiting_is_not_missed():
    board = Board()
    generation = board.generation(Topic.WORK)
    board.post(Topic.WORK)
    assert await board.wait(Topic.WORK, generation, None)
    assert board.generation(Topic.VERSIONS) == 0


async def test_a_damaged_journal_is_told_to_whoever_runs_the_hub(tmp_path):
    def read(context):
        raise DamagedJournalError("journal.sqlite is damaged")

    called = asyncio.Event()
    async with running_core(SqliteStore(tmp_path / "journal.sqlite")) as core:
        core.when_damaged = called.set
        with pytest.raises(DamagedJournalError):
            await core.run(read)
        await called.wait()
        assert str(core.damage) == "journal.sqlite is damaged"
        assert not core.writable


async def test_a_failed_sync_acknowledges_nothing_and_ends_the_hub():
    class Failing(MemoryStore):
        def sync(self):
            raise StorageError("the disk is gone")

    called = asyncio.Event()
    async with running_core(Failing()) as core:
        core.when_damaged = called.set
        with pytest.raises(StorageError, match="the disk is gone"):
            await core.run(bump, "a")
        await called.wait()
        assert str(core.damage) == "the disk is gone"
