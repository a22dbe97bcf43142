"""A hub in memory that implements both ports, and a worker that runs against it in this process."""

import asyncio
import dataclasses
import json
from collections import Counter, deque
from collections.abc import Callable

import pytest
import torch

from hetero_rl.config.tree import Config
from hetero_rl.errors import FencedError, HeteroRLError, RefusedError, UnreachableError
from hetero_rl.hub.handlers.routes import plan
from hetero_rl.weights.full import encode_full, stage_full
from hetero_rl.weights.model_files import collect_model_files, model_digests
from hetero_rl.weights.probe import make_probe_card
from hetero_rl.wire.columns import float32_view, int32_column
from hetero_rl.wire.messages import (
    GenerateWork,
    HeartbeatReply,
    JoinGrant,
    Lease,
    LeaseGrant,
    Limits,
    NoWorkReason,
    Purpose,
    RunDescription,
    SamplingParameters,
    ScoreWork,
    SubmissionReceipt,
    WeightEncoding,
    WorkerState,
)
from hetero_rl.worker.backend import Backend, DeviceReport
from hetero_rl.worker.engine import EngineSettings
from hetero_rl.worker.engines.scripted import ScriptedEngine
from hetero_rl.worker.main import WorkerOptions, serve
from hetero_rl.worker.resend import Pacing

VOCABULARY = 16
SAMPLING = SamplingParameters(max_new_tokens=6, stop_token_ids=(2,), seed=1)
PACING = Pacing(
    first_delay=0.001,
    longest_delay=0.002,
    patience=100.0,
    lease_wait=0.02,
    version_wait=0.02,
    look_again=0.001,
    drain=100.0,
    flush=100.0,
    engine_restarts=2,
)


class FakeHub:
    """Groups, versions and what a worker did, in plain fields; faults are functions that are called before a method."""

    def __init__(self, directory):
        self.directory = directory
        model_dir = directory / "model"
        model_dir.mkdir()
        (model_dir / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
        (model_dir / "vocab.txt").write_text("a\nb")
        self.model_dir = model_dir
        self.blobs: dict[str, bytes] = {}
        self.digests = model_digests(model_dir)
        self.model_files = []
        for file, path in collect_model_files(model_dir):
            self.blobs[file.blob.digest] = path.read_bytes()
            self.model_files.append(file)
        self.queue: deque[GenerateWork] = deque()
        self.leased: dict[str, GenerateWork] = {}
        self.finished: dict[str, list] = {}
        self.submissions: dict[int, object] = {}
        self.duplicates = 0
        self.batch_sizes: list[int] = []
        self.versions = {}
        self.sampling = SAMPLING
        self.joins = []
        self.beats = []
        self.probes = []
        self.left: list[str] = []
        self.lost: list[str] = []
        self.loaded_seen: list[int] = []
        self.held_seen: list[int] = []
        self.longest_plan = 100
        self.fetched: list[tuple[str, int]] = []
        self.state = WorkerState.ACTIVE
        self.epoch = 1
        self.complete_when_done = True
        self.calls = Counter()
        self.before: dict[str, Callable[[int], None]] = {}
        self.changed = asyncio.Condition()

    # --- what a test sets up ---

    def add_groups(self, count, *, samples=4, sampling=SAMPLING, start=0):
        for number in range(start, start + count):
            self.queue.append(
                GenerateWork(
                    group_id=f"g{number}",
                    purpose=Purpose.TRAIN,
                    prompt_token_ids=int32_column([3, 4 + number % 8]),
                    sample_indices=tuple(range(samples)),
                    sampling=dataclasses.replace(sampling, seed=number),
                )
            )

    async def publish(
        self, version, *, value=None, names=("weight",), probe=None, tolerance=1e-3, delta=False
    ):
        """Makes a version known, as a full copy or as a delta against the latest one.

        `probe` are the log-probabilities of its card, or "right" for those of the engine.
        """
        state = {name: torch.tensor([float(value or version), 1.0]) for name in names}
        card = None
        if probe is not None:
            sequence = [3, 5, 7, 9]
            log_probs = await self._right(state, sequence) if probe == "right" else probe
            card = make_probe_card([sequence], log_probs, tolerance)
        encode = self._encode_delta if delta else encode_full
        encoded = encode(state, self.directory / "blobs", version=version, step=version - 1, probe_card=card)
        for blob in encoded.blobs:
            self.blobs[blob.reference.digest] = blob.path.read_bytes()
        self.versions[version] = encoded.manifest
        await self._notify()

    def _encode_delta(self, state, directory, **fields):
        from hetero_rl.weights.changes import encode_delta  # needs numba, which few tests do
        from hetero_rl.weights.held import HeldWeights

        held, base = None, self.versions[self.latest]
        for manifest in plan(0, base.version, tuple(WeightEncoding), list(self.versions.values())):
            paths = [directory / blob.digest for blob in manifest.blobs]
            if held is None:
                held = HeldWeights.from_staged(stage_full(manifest, paths))
            else:
                held.apply_delta(manifest, paths)
        return encode_delta(held, state, directory, **fields)

    async def _right(self, state, sequence):
        engine = ScriptedEngine(
            EngineSettings(model_dir=self.model_dir, dtype="float32", max_concurrent_sequences=1)
        )
        await engine.start()
        await engine.load_weights(state.items(), 1)
        work = ScoreWork(
            score_id="s", lengths=(len(sequence),), token_ids=int32_column(sequence), weight_version=1
        )
        return float32_view(await engine.score(work)).tolist()

    def fail(self, method, *errors):
        """The next calls of a method raise these errors, one each; None lets a call pass."""
        waiting = deque(errors)

        def before(_):
            error = waiting.popleft() if waiting else None
            if error is not None:
                raise error

        self.before[method] = before

    async def until(self, predicate):
        """Returns when a predicate about the hub holds."""
        async with self.changed:
            await self.changed.wait_for(predicate)

    @property
    def latest(self):
        return max(self.versions, default=0)

    # --- RolloutPort ---

    async def get_run(self):
        self._called("get_run")
        return RunDescription(
            run_id="r",
            model_digests=self.digests,
            model_files=tuple(self.model_files),
            sampling=self.sampling,
            limits=Limits(
                max_message_bytes=2**20,
                max_prompt_tokens=100,
                max_completion_tokens=100,
                max_group_size=100,
                vocabulary_size=VOCABULARY,
            ),
            latest_weight_version=self.latest,
        )

    async def join(self, request):
        self._called("join")
        self.joins.append(request)
        await self._notify()
        return JoinGrant(
            worker_epoch=self.epoch,
            lease_duration=60.0,
            heartbeat_interval=0.002,
            dead_after=15.0,
            latest_weight_version=self.latest,
        )

    async def lease_work(self, worker, *, loaded_weight_version, free_sequences, wait):
        self._called("lease_work")
        self._check(worker)
        self.loaded_seen.append(loaded_weight_version)
        await self._notify()
        reason = self._reason()
        if reason is NoWorkReason.QUEUE_EMPTY:
            await self._wait_for(lambda: self._reason() is not NoWorkReason.QUEUE_EMPTY, wait)
            reason = self._reason()
        leases = []
        while reason is None and self.queue and free_sequences >= len(self.queue[0].sample_indices):
            work = self.queue.popleft()
            free_sequences -= len(work.sample_indices)
            lease_id = f"{work.group_id}.{self.calls['lease_work']}"
            self.leased[lease_id] = work
            leases.append(
                Lease(lease_id=lease_id, attempt=0, time_to_live=60.0, min_weight_version=0, work=work)
            )
        return LeaseGrant(
            leases=tuple(leases),
            no_work_reason=None if leases else reason or NoWorkReason.QUEUE_EMPTY,
            min_weight_version=0,
            latest_weight_version=self.latest,
        )

    async def submit_results(self, submission):
        self._called("submit_results")
        self._check(submission.worker)
        duplicate = submission.sequence in self.submissions
        self.duplicates += duplicate
        if not duplicate:
            if submission.lease_id not in self.leased:
                raise RefusedError("lease lost", "LEASE_LOST")
            self.submissions[submission.sequence] = submission
            self.finished.setdefault(submission.lease_id, []).append(submission.results)
            if submission.final:
                del self.leased[submission.lease_id]
        await self._notify()
        self._called("submit_reply")
        return SubmissionReceipt(duplicate=duplicate, credits=64)

    async def submit_batch(self, submissions):
        self._called("submit_batch")
        self.batch_sizes.append(len(submissions))
        outcomes = []
        for submission in submissions:
            try:
                outcomes.append(await self.submit_results(submission))
            except HeteroRLError as error:
                outcomes.append(error)
        return tuple(outcomes)

    async def heartbeat(self, heartbeat):
        self._called("heartbeat")
        self._check(heartbeat.worker)
        self.beats.append(heartbeat)
        await self._notify()
        lost = tuple(lease_id for lease_id in heartbeat.lease_ids if lease_id in self.lost)
        return HeartbeatReply(lost_lease_ids=lost, latest_weight_version=self.latest, state=self.state)

    async def report_probe(self, worker, result, numerics_id):
        self._called("report_probe")
        self._check(worker)
        accepted = (
            result.mean_absolute_difference <= self.versions[result.weight_version].probe_card.tolerance
        )
        self.probes.append((result.weight_version, accepted))
        if not accepted:
            self.state = WorkerState.QUARANTINED
        await self._notify()
        return accepted

    async def leave(self, worker, reason):
        self.left.append(reason)
        self.leased.clear()
        await self._notify()

    # --- WeightPort ---

    async def get_plan(self, *, held_version, wanted_version, encodings):
        self._called("get_plan")
        if self.latest in {0, held_version}:
            return ()
        self.held_seen.append(held_version)
        way = plan(held_version, self.latest, encodings, list(self.versions.values()))
        return way[: self.longest_plan]

    async def fetch_blob(self, digest, offset):
        self.fetched.append((digest, offset))
        self._called("fetch_blob")
        data = self.blobs[digest]
        for start in range(offset, len(data), 4):
            yield data[start : start + 4]
            self._called("fetch_chunk")

    async def await_version(self, after_version, wait):
        self._called("await_version")
        await self._wait_for(lambda: self.latest > after_version, wait)
        return self.latest

    # --- inside ---

    def _reason(self):
        if self.state is WorkerState.QUARANTINED:
            return NoWorkReason.QUARANTINED
        if self.queue:
            return None
        if self.complete_when_done and not self.leased:
            return NoWorkReason.RUN_COMPLETE
        return NoWorkReason.QUEUE_EMPTY

    def _check(self, worker):
        if worker.worker_epoch < self.epoch:
            raise FencedError("a newer process has taken the name")

    def _called(self, method):
        self.calls[method] += 1
        if method in self.before:
            self.before[method](self.calls[method])

    async def _notify(self):
        async with self.changed:
            self.changed.notify_all()

    async def _wait_for(self, predicate, wait):
        try:
            async with asyncio.timeout(wait):
                await self.until(predicate)
        except TimeoutError:
            return


class Fleet:
    """Starts workers against a hub."""

    def __init__(self, hub, tmp_path):
        self.hub = hub
        self.cache_dir = tmp_path / "cache"
        self.signals = asyncio.Queue()
        self.engines = []
        self.engine_class = ScriptedEngine
        self.pacing = PACING
        self.declares = {}

    def choose_engine(self, name):
        return self.build

    def build(self, settings):
        engine = self.engine_class(settings)
        self.engines.append(engine)
        return engine

    async def serve(self, *, pacing=None, capacity=8, **worker):
        backend = _TestBackend(
            name="test",
            vendor="cpu",
            description="the scripted engine",
            engines={"scripted": ""},
            default_engine="scripted",
            detect=lambda: DeviceReport(available=True, devices=(), advice=""),
            choose=self.choose_engine,
            **self.declares,
        )
        settings = {"max_concurrent_sequences": capacity} | worker
        options = WorkerOptions(
            hub_address="127.0.0.1:1",
            backend=backend,
            worker_name="w",
            config=Config.model_validate({"inference": {"worker": settings}}),
            pacing=pacing or self.pacing,
            cache_dir=self.cache_dir,
        )
        await serve(options, self.hub, self.hub, self.signals)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TestBackend(Backend):
    choose: Callable

    def engine_class(self, name=None):
        return self.choose(name)


@pytest.fixture
def hub(tmp_path):
    return FakeHub(tmp_path)


@pytest.fixture
def fleet(hub, tmp_path):
    return Fleet(hub, tmp_path)


@pytest.fixture
def unreachable():
    return UnreachableError("no answer")
