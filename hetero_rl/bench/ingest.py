"""What it costs to hand in results safely: submit, validate, store durably and acknowledge, against bare inserts.

    this process                                   hub process
      W workers, one after the other each  ──────►  converts, checks against lease and limits, commits, acknowledges
      bare SQLite: one connection, one transaction for each submission of the same bytes

Both use write-ahead logging with synchronous=FULL on the same disk, so an acknowledged submission survives a power cut. The
bare side does nothing else: it is the least that a durable acknowledgement can cost.
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

from hetero_rl.bench.samples import VOCABULARY_SIZE, sample_batch
from hetero_rl.bench.schema import Figure
from hetero_rl.bench.timing import compare
from hetero_rl.config.tree import Config
from hetero_rl.errors import UnreachableError
from hetero_rl.hub.main import serve
from hetero_rl.hub.server import ADDRESS_FILE
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.convert.trajectories import trajectory_batch_to_proto
from hetero_rl.wire.messages import (
    BlobReference,
    Capabilities,
    DataType,
    JoinRequest,
    Lease,
    Limits,
    ModelDigests,
    NumericsRecord,
    PromptGroup,
    RunRequest,
    SamplingParameters,
    Submission,
    TensorEntry,
    TrajectoryBatch,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
)

__all__ = ["IngestShape", "ingest_figure"]

T = TypeVar("T")

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_MAX_LEASES_PER_CALL = 64
_DIGESTS = ModelDigests(
    config=hashlib.sha256(b"config").hexdigest(), tokenizer=hashlib.sha256(b"").hexdigest()
)
_NUMERICS = NumericsRecord(
    engine="none",
    engine_version="",
    torch_version="",
    device_vendor="cpu",
    device_name="",
    driver_version="",
    runtime_version="",
    data_type="float32",
    attention_backend="",
    log_probs_mode="raw",
)


@dataclasses.dataclass(frozen=True, slots=True)
class IngestShape:
    """How much is handed in."""

    workers: int = 8
    pairs: int = 15
    submissions: int = 32
    """Of all workers together, in one measurement."""
    samples: int = 8
    tokens_each: int = 512

    @property
    def groups(self) -> int:
        """Groups of all measurements and the warm-up."""
        return self.submissions * (self.pairs + 1)


def ingest_figure(*, quick: bool = False, directory: Path | None = None) -> Figure:
    """Submissions per second at the hub over bare inserts of the same bytes per second.

    Args:
        quick: Take seconds; the figure proves nothing.
        directory: Where both sides write, None for the current one: a temporary directory is often in memory, where
            nothing is durable.
    """
    shape = IngestShape(pairs=5, submissions=8, tokens_each=16) if quick else IngestShape()
    with tempfile.TemporaryDirectory(prefix="bench-ingest-", dir=directory or Path.cwd()) as scratch:
        return _measure(shape, Path(scratch))


def _measure(shape: IngestShape, scratch: Path) -> Figure:
    batch = sample_batch(samples=shape.samples, tokens_each=shape.tokens_each, seed=2)
    batch = dataclasses.replace(batch, numerics_id=_NUMERICS.numerics_id)
    packed = trajectory_batch_to_proto(batch).SerializeToString()
    with _hub(scratch / "run") as address, _event_loop() as run, _bare_journal(scratch) as insert:
        _open_run(address, shape)
        fleet = run(_join(address, shape, batch))
        rounds = iter(run(fleet.lease_everything(shape)))
        try:
            ratio = compare(
                lambda: run(fleet.submit(next(rounds))),
                lambda: [insert(packed) for _ in range(shape.submissions)],
                pairs=shape.pairs,
                clock=time.perf_counter,
            )
        finally:
            run(fleet.close())
    return ratio.figure(
        "ingest_over_sqlite",
        f"inserts of the same {len(packed)} bytes into bare SQLite, one durable transaction each, against submissions of "
        f"{shape.workers} concurrent workers that the hub validated, stored and acknowledged; wall time",
        target=0.5,
    )


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
def _bare_journal(directory: Path) -> Generator[Callable[[bytes], None]]:
    """An insert that returns when the bytes are on disk, and nothing around it."""
    connection = sqlite3.connect(directory / "bare.sqlite", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE submissions (id INTEGER PRIMARY KEY, packed BLOB NOT NULL)")

        def insert(packed: bytes) -> None:
            connection.execute("INSERT INTO submissions (packed) VALUES (?)", (packed,))

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
        run_id="bench",
        groups_per_step=shape.groups,
        max_lag=0,
        total_steps=1,
        model_digests=_DIGESTS,
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Fleet:
    """Workers that joined, each with a client and its connections."""

    clients: tuple[RolloutClient, ...]
    identities: tuple[WorkerIdentity, ...]
    batch: TrajectoryBatch

    async def lease_everything(self, shape: IngestShape) -> list[list[list[Submission]]]:
        """Results for every group: a list for each measurement, in it a list for each worker."""
        shares = [
            await self._lease(number, shape.groups // shape.workers, shape.samples)
            for number in range(shape.workers)
        ]
        each = shape.submissions // shape.workers
        return [
            [share[start : start + each] for share in shares]
            for start in range(0, shape.groups // shape.workers, each)
        ]

    async def _lease(self, number: int, groups: int, samples: int) -> list[Submission]:
        identity, leases = self.identities[number], list[Lease]()
        while len(leases) < groups:
            wanted = min(groups - len(leases), _MAX_LEASES_PER_CALL)
            grant = await self.clients[number].lease_work(
                identity, loaded_weight_version=1, free_sequences=wanted * samples, wait=1.0
            )
            if not grant.leases:
                raise UnreachableError(f"the hub gave no lease: {grant.no_work_reason}")
            leases += grant.leases
        return [self._result(identity, sequence, lease) for sequence, lease in enumerate(leases)]

    def _result(self, identity: WorkerIdentity, sequence: int, lease: Lease) -> Submission:
        group_id = getattr(lease.work, "group_id", "")
        return Submission(
            worker=identity,
            sequence=sequence,
            lease_id=lease.lease_id,
            final=True,
            results=dataclasses.replace(self.batch, group_id=group_id),
        )

    async def submit(self, shares: list[list[Submission]]) -> None:
        """Every worker hands in its share, one submission after the acknowledgement of the other."""
        async with asyncio.TaskGroup() as tasks:
            for client, share in zip(self.clients, shares, strict=True):
                tasks.create_task(_submit_all(client, share))

    async def close(self) -> None:
        """Ends the connections."""
        for client in self.clients:
            await client.close()


async def _submit_all(client: RolloutClient, submissions: list[Submission]) -> None:
    for submission in submissions:
        receipt = await client.submit_results(submission)
        if receipt.duplicate:
            raise AssertionError(f"submission {submission.sequence} was measured twice")


async def _join(address: str, shape: IngestShape, batch: TrajectoryBatch) -> _Fleet:
    clients = tuple(RolloutClient(address) for _ in range(shape.workers))
    identities = []
    for number, client in enumerate(clients):
        request = JoinRequest(
            run_id="bench",
            worker_name=f"worker-{number}",
            boot_id="boot",
            backend="bench",
            software_version="bench",
            capabilities=Capabilities(
                max_concurrent_sequences=shape.groups * shape.samples,
                max_sequence_tokens=2**20,
                scoring=False,
                in_flight_update=False,
                processed_log_probs=False,
            ),
            numerics=_NUMERICS,
            model_digests=_DIGESTS,
        )
        grant = await client.join(request)
        identities.append(WorkerIdentity(request.worker_name, grant.worker_epoch))
    return _Fleet(clients, tuple(identities), batch)
