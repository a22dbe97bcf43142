"""What it costs to hand in results safely: submit, validate, store durably and acknowledge, against bare inserts.

    this process                                       hub process
      W workers, each with finished groups waiting ──►  converts, checks against lease and limits, commits, acknowledges
      bare SQLite: one connection, inserts of the same bytes

Both use write-ahead logging with synchronous=FULL on the same disk, so an acknowledged submission survives a power cut. The
bare side does nothing else: it is the least that a durable acknowledgement can cost.

The workers hand in with the worker's own `submit_loop`, which puts what waits into one call. A submission is acknowledged by
itself and a bare insert is durable by itself, so that is the comparison with a target. Two others tell what is in it: the
same workers with one submission for each call, and bare inserts that share a transaction as the hub's submissions do.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

from hetero_rl.bench.ingest_fleet import DIGESTS, NUMERICS, RUN_ID, Fleet, Results
from hetero_rl.bench.samples import VOCABULARY_SIZE, sample_batch
from hetero_rl.bench.schema import Figure
from hetero_rl.bench.timing import Ratio, compare
from hetero_rl.config.tree import Config
from hetero_rl.errors import UnreachableError
from hetero_rl.hub.main import serve
from hetero_rl.hub.server import ADDRESS_FILE
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.convert.trajectories import trajectory_batch_to_proto
from hetero_rl.wire.messages import (
    BlobReference,
    DataType,
    Limits,
    PromptGroup,
    RunRequest,
    SamplingParameters,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
)

__all__ = ["IngestShape", "ingest_figures"]

T = TypeVar("T")
Submit = Callable[[list[Results]], Coroutine[Any, Any, None]]

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
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
    with _hub(scratch / "run") as address, _event_loop() as run, _bare_journal(scratch) as insert:
        _open_run(address, shape)
        fleet = run(Fleet.join(address, shape.workers, shape.groups * shape.samples, batch))
        rounds = iter(run(fleet.lease_rounds(shape.rounds, shape.waiting)))

        def ratio(submit: Submit, together: int) -> Ratio:
            return compare(
                lambda: run(submit(next(rounds))),
                lambda: [insert([packed] * together) for _ in range(shape.submissions // together)],
                pairs=shape.pairs,
                clock=time.perf_counter,
            )

        try:
            figures = _figures(shape, len(packed), ratio, fleet)
        finally:
            run(fleet.close())
        _check_stored(address, shape)
    return figures


def _figures(
    shape: IngestShape,
    size: int,
    ratio: Callable[[Submit, int], Ratio],
    fleet: Fleet,
) -> tuple[Figure, ...]:
    alone = f"inserts of the same {size} bytes into bare SQLite, one durable transaction each"
    shared = f"inserts of the same {size} bytes into bare SQLite, one durable transaction for {shape.waiting}"
    loop = f"{shape.workers} workers with {shape.waiting} finished groups waiting at each, handed in by the submit loop"
    calls = f"{shape.workers} workers that hand in one submission after the acknowledgement of the other"
    return (
        ratio(fleet.hand_in, 1).figure(
            "ingest_over_sqlite", f"{alone}, against {loop}; wall time", target=0.5
        ),
        ratio(fleet.hand_in, shape.waiting).figure(
            "ingest_over_sqlite_in_batches", f"{shared}, against {loop}; wall time"
        ),
        ratio(fleet.one_by_one, 1).figure(
            "ingest_one_by_one_over_sqlite", f"{alone}, against {calls}; wall time"
        ),
    )


def _check_stored(address: str, shape: IngestShape) -> None:
    """A submission that was refused would have cost less than one that was stored."""
    with FleetClient(address) as client:
        stored = client.run_status().training.finished
    if stored != shape.groups:
        raise AssertionError(f"{shape.groups} groups were handed in, the hub has {stored}")


@contextlib.contextmanager
def _event_loop() -> Generator[Callable[[Coroutine[Any, Any, T]], T]]:
    """Runs coroutines; unlike asyncio.Runner without work of its own at each call, which would be timed."""
    loop = asyncio.new_event_loop()
    try:
        yield loop.run_until_complete
    finally:
        loop.close()


@contextlib.contextmanager
def _hub(run_dir: Path) -> Generator[str]:
    """A hub in a process of its own; gives its address."""
    config = Config.model_validate({"hub": {"lease_seconds": 3600.0, "heartbeat_seconds": 1200.0}})
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(config, run_dir))
    process.start()
    try:
        yield _address(run_dir / "hub" / ADDRESS_FILE, process.is_alive)
    finally:
        process.terminate()
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _address(file: Path, alive: Callable[[], bool]) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and alive():
        if file.exists():
            return file.read_text(encoding="utf-8").strip()
        time.sleep(0.02)
    raise UnreachableError(f"the hub of the benchmark did not start within {_START_SECONDS:g} s")


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


def _open_run(address: str, shape: IngestShape) -> None:
    """A run with one version of the smallest weights, and a prompt group for every submission."""
    sampling = SamplingParameters(max_new_tokens=shape.tokens_each, stop_token_ids=())
    limits = Limits(
        max_message_bytes=2**23,
        max_prompt_tokens=64,
        max_completion_tokens=shape.tokens_each,
        max_group_size=shape.samples,
        vocabulary_size=VOCABULARY_SIZE,
    )
    request = RunRequest(
        run_id=RUN_ID,
        groups_per_step=shape.groups,
        max_lag=0,
        total_steps=1,
        model_digests=DIGESTS,
        model_files=(),
        sampling=sampling,
        limits=limits,
        config_json="{}",
        software_version="bench",
    )
    groups = [
        PromptGroup(
            group_id=f"group-{ordinal}",
            ordinal=ordinal,
            prompt_token_ids=int32_column([1]),
            group_size=shape.samples,
            sampling=sampling,
        )
        for ordinal in range(shape.groups)
    ]
    weights = bytes(4)
    with TrainingClient(address) as trainer:
        trainer.open_run(request)
        manifest = _manifest(weights)
        trainer.put_blob(manifest.blobs[0], iter([weights]))
        trainer.publish_version(manifest)
        trainer.enqueue_groups(groups)


def _manifest(weights: bytes) -> WeightManifest:
    digest = hashlib.sha256(weights).hexdigest()
    tensor = TensorEntry(
        name="w",
        data_type=DataType.FLOAT32,
        shape=(1,),
        digest=digest,
        blob_index=0,
        offset=0,
        size=len(weights),
    )
    return WeightManifest(
        version=1,
        step=0,
        encoding=WeightEncoding.FULL_RAW,
        tensors=(tensor,),
        blobs=(BlobReference(digest, len(weights)),),
        state_digest=state_digest((tensor,)),
    )
