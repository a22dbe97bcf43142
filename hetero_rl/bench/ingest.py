"""What it costs to hand in results safely: submit, validate, store durably and acknowledge, against bare inserts.

    this process                                       hub process
      W workers, each with finished groups waiting ──►  converts, checks against lease and limits, commits, acknowledges
      bare SQLite: one connection, inserts of the same bytes

Both use write-ahead logging on the same disk and sync before they acknowledge, the bare side within its commit (synchronous=FULL),
so an acknowledged submission survives a power cut. The bare side does nothing else: it is the least that a durable acknowledgement can cost.

The workers hand in with the worker's own `submit_loop`, which puts what waits into one call. A submission is acknowledged by
itself and a bare insert is durable by itself, so that is the comparison with a target. Two others tell what is in it: the
same workers with one submission for each call, and bare inserts that share a transaction as the hub's submissions do.
"""

import contextlib
import dataclasses
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from hetero_rl.bench.engineless import NUMERICS
from hetero_rl.bench.ingest_fleet import Fleet, Results
from hetero_rl.bench.ingest_run import check_stored, event_loop, hub_config, open_run
from hetero_rl.bench.processes import running_hub_process
from hetero_rl.bench.samples import sample_batch
from hetero_rl.bench.schema import Figure
from hetero_rl.bench.timing import Ratio, compare_costs, spent
from hetero_rl.wire.convert.trajectories import trajectory_batch_to_proto

__all__ = ["IngestShape", "ingest_figures"]

Submit = Callable[[list[Results]], Coroutine[Any, Any, None]]

_COMPARISONS = 3
_INSERT = "INSERT INTO submissions (packed) VALUES (?)"


@dataclasses.dataclass(frozen=True, slots=True)
class IngestShape:
    """How much is handed in."""

    workers: int = 8
    pairs: int = 15
    waiting: int = 8
    """Finished groups that wait at each worker, in one measurement."""
    samples: int = 8
    tokens_each: int = 512

    @property
    def submissions(self) -> int:
        """Of all workers together, in one measurement."""
        return self.workers * self.waiting

    @property
    def rounds(self) -> int:
        """Measurements and warm-ups of all comparisons."""
        return _COMPARISONS * (self.pairs + 1)

    @property
    def groups(self) -> int:
        """Of all rounds."""
        return self.rounds * self.submissions


def ingest_figures(*, quick: bool = False, directory: Path | None = None) -> tuple[Figure, ...]:
    """Submissions per second at the hub over bare inserts of the same bytes per second.

    Args:
        quick: Take seconds; the figures prove nothing.
        directory: Where both sides write, None for the current one: a temporary directory is often in memory, where
            nothing is durable.
    """
    shape = IngestShape(pairs=5, waiting=2, tokens_each=16) if quick else IngestShape()
    with tempfile.TemporaryDirectory(prefix="bench-ingest-", dir=directory or Path.cwd()) as scratch:
        return _measure(shape, Path(scratch))


def _measure(shape: IngestShape, scratch: Path) -> tuple[Figure, ...]:
    batch = sample_batch(samples=shape.samples, tokens_each=shape.tokens_each, seed=2)
    batch = dataclasses.replace(batch, numerics_id=NUMERICS.numerics_id)
    packed = trajectory_batch_to_proto(batch).SerializeToString()
    hub_process = running_hub_process(scratch / "run", hub_config())
    with hub_process as hub, event_loop() as run, _bare_journal(scratch) as insert:
        open_run(hub.address, groups=shape.groups, samples=shape.samples, tokens_each=shape.tokens_each)
        names = {f"worker-{number}": None for number in range(shape.workers)}
        fleet = run(Fleet.join(hub.address, names, shape.groups * shape.samples, batch))
        rounds = iter(run(fleet.lease_rounds(shape.rounds, shape.waiting)))

        def compared(submit: Submit, together: int) -> _Compared:
            hub_seconds: list[float] = []

            def hand_in() -> tuple[float, ...]:
                wall, cpu = spent(
                    lambda: run(submit(next(rounds))), time.perf_counter, lambda: hub.cpu_seconds
                )
                hub_seconds.append(cpu)
                return wall, cpu

            def insert_all() -> tuple[float, ...]:
                return spent(
                    lambda: _repeat(insert, [packed] * together, shape.submissions // together),
                    time.perf_counter,
                    time.process_time,
                )

            wall, cpu = compare_costs(hand_in, insert_all, pairs=shape.pairs)
            return _Compared(wall, cpu, [1e3 * seconds / shape.submissions for seconds in hub_seconds[1:]])

        try:
            figures = _figures(shape, len(packed), compared, fleet)
        finally:
            run(fleet.close())
        check_stored(hub.address, shape.groups)
    return figures


def _repeat(insert: Callable[[list[bytes]], None], rows: list[bytes], times: int) -> None:
    for _ in range(times):
        insert(rows)


@dataclasses.dataclass(frozen=True, slots=True)
class _Compared:
    """Bare inserts over the hub, and what a submission takes of the hub's processor time."""

    wall: Ratio
    cpu: Ratio
    milliseconds: list[float]

    def milliseconds_figure(self, name: str, how: str) -> Figure:
        """What one submission takes, as a figure."""
        value, spread = statistics.median(self.milliseconds), self.milliseconds
        return Figure(name=name, value=value, unit="ms", low=min(spread), high=max(spread), baseline=how)


def _figures(
    shape: IngestShape, size: int, compared: Callable[[Submit, int], _Compared], fleet: Fleet
) -> tuple[Figure, ...]:
    alone = f"inserts of the same {size} bytes into bare SQLite, one durable transaction each"
    shared = f"inserts of the same {size} bytes into bare SQLite, one durable transaction for {shape.waiting}"
    loop = f"{shape.workers} workers with {shape.waiting} finished groups waiting at each, handed in by the submit loop"
    calls = f"{shape.workers} workers that hand in one submission after the acknowledgement of the other"
    cpu = "processor time, the hub's without the workers'"
    each, together, single = (
        compared(fleet.hand_in, 1),
        compared(fleet.hand_in, shape.waiting),
        compared(fleet.one_by_one, 1),
    )
    return (
        each.wall.figure("ingest_over_sqlite", f"{alone}, against {loop}; wall time", target=0.5),
        each.cpu.figure("ingest_cpu_over_sqlite", f"{alone}, against {loop}; {cpu}"),
        each.milliseconds_figure("ingest_hub_cpu", f"one submission, {loop}; {cpu}"),
        together.wall.figure("ingest_over_sqlite_in_batches", f"{shared}, against {loop}; wall time"),
        single.wall.figure("ingest_one_by_one_over_sqlite", f"{alone}, against {calls}; wall time"),
        single.cpu.figure("ingest_one_by_one_cpu_over_sqlite", f"{alone}, against {calls}; {cpu}"),
        single.milliseconds_figure("ingest_one_by_one_hub_cpu", f"one submission, {calls}; {cpu}"),
    )


@contextlib.contextmanager
def _bare_journal(directory: Path) -> Generator[Callable[[list[bytes]], None]]:
    """An insert that returns when the rows are on disk, and nothing around it."""
    connection = sqlite3.connect(directory / "bare.sqlite", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE submissions (id INTEGER PRIMARY KEY, packed BLOB NOT NULL)")

        def insert(rows: list[bytes]) -> None:
            if len(rows) == 1:
                connection.execute(_INSERT, (rows[0],))
                return
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, [(packed,) for packed in rows])
            connection.execute("COMMIT")

        yield insert
    finally:
        connection.close()
