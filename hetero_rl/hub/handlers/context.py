"""What every handler works on: the store, the clock, the settings, and what is only known while the hub lives."""

import dataclasses
import enum
from collections.abc import Collection
from typing import Protocol

from hetero_rl.errors import FencedError, RefusedError
from hetero_rl.hub.clock import Clock
from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.records import RunRecord, RunState
from hetero_rl.wire.messages import BlobReference, RunDescription

__all__ = ["BlobIndex", "DescribedRun", "HubContext", "HubSettings", "Liveness", "Topic", "WorkerReport"]


class Topic(enum.Flag):
    """What somebody may be waiting for."""

    WORK = enum.auto()
    """Queue, worker states, end of the run."""
    RESULTS = enum.auto()
    """Finished groups."""
    VERSIONS = enum.auto()
    """Published weight versions."""
    HEALTH = enum.auto()
    """Whether the journal takes writes."""


class BlobIndex(Protocol):
    """Which blobs are stored, complete and verified. None of its methods touches a disk."""

    def has(self, blob: BlobReference) -> bool:
        """Whether the blob is there."""

    def digests(self) -> Collection[str]:
        """Digests of which bytes are held, complete or not, and to which nobody is writing."""

    def withdraw(self, digest: str) -> None:
        """Makes a blob unknown at once; `BlobStore.purge` removes its bytes later."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """Terms of the hub; durations in seconds."""

    lease_seconds: float = 60.0
    heartbeat_seconds: float = 5.0
    missed_heartbeats: int = 3
    retained_sequences: int = 4096
    max_message_bytes: int = 8 * 2**20
    queue_steps: int = 0
    """Optimizer steps of training groups kept in the queue at least; the run's max_lag is added. 0 derives it."""
    split_groups: bool = False
    """Whether the completions of a training group may go to several backends."""
    blob_grace: float = 600.0
    """How long a weight blob that somebody asked for is kept."""
    unnamed_grace: float = 3600.0
    """How long a blob that no weight version and no model file names is kept: its upload may be part of a publication."""

    @property
    def dead_after(self) -> float:
        """Silence after which a worker is declared dead."""
        return self.heartbeat_seconds * self.missed_heartbeats


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker last said of itself; not worth a write."""

    loaded_weight_version: int = 0
    generated_tokens: int = 0
    busy_seconds: float = 0.0


@dataclasses.dataclass(slots=True)
class Liveness:
    """What is measured on the monotonic clock and so ends with the process.

    After a restart every lease and worker gets a full term again: `lease_ends` and `seen` fill up from the store.
    """

    lease_ends: dict[str, float] = dataclasses.field(default_factory=dict)
    seen: dict[str, float] = dataclasses.field(default_factory=dict)
    reports: dict[str, WorkerReport] = dataclasses.field(default_factory=dict)
    blob_asked: dict[str, float] = dataclasses.field(default_factory=dict)
    unnamed: dict[str, float] = dataclasses.field(default_factory=dict)
    """Blobs that nothing names, and since when that is known."""
    loaded: dict[str, int] = dataclasses.field(default_factory=dict)
    """Weight version that each worker last said to have loaded."""
    trainer_connected: bool = False
    withheld: bool = False
    """Whether a worker was refused work that is there; it is told when a lease ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class DescribedRun:
    """A description, and what it is of."""

    run: RunRecord
    description: RunDescription


class HubContext:
    """Store, clock and settings of one hub, and the changes of the running call.

    Used in the thread of `HubCore` only, except for `settings` and `clock`.
    """

    def __init__(self, store: HubStore, clock: Clock, settings: HubSettings, blobs: BlobIndex) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.blobs = blobs
        self.liveness = Liveness()
        self.started_at = clock.monotonic()
        self.changed = Topic(0)
        self.description: DescribedRun | None = None
        """What the run was last described as."""

    def notify(self, topic: Topic) -> None:
        """Wakes who waits for `topic`, once the running transaction is durable."""
        if topic is not self.changed:  # combining flags is slow, and most calls notify of one topic
            self.changed |= topic

    def event(self, kind: str, message: str, worker_name: str = "") -> None:
        """Writes something into the run's history that a person may want to know."""
        self.store.add_event(self.clock.wall(), kind, worker_name, message)

    def open_run(self) -> RunRecord:
        """The run, if a trainer opened it; raises RefusedError RUN_NOT_OPEN."""
        run = self.store.run()
        if run is None or run.state is RunState.DETACHED:
            raise RefusedError("no trainer has opened a run at this hub yet: come back later", "RUN_NOT_OPEN")
        return run

    def known_run(self) -> RunRecord:
        """The run in any state, closed too; raises RefusedError RUN_NOT_OPEN when none was ever opened."""
        return self.store.run() or self.open_run()

    def trainer_run(self, trainer_epoch: int) -> RunRecord:
        """The run, if `trainer_epoch` is the newest; raises FencedError otherwise."""
        run = self.open_run()
        if trainer_epoch != run.trainer_epoch:
            raise FencedError(
                f"trainer epoch {trainer_epoch} is not the newest, {run.trainer_epoch}: another trainer opened the run; "
                "stop this one"
            )
        return run

    def latest_version(self) -> int:
        """Highest published weight version; 0 before the first."""
        latest = self.store.latest_version()
        return latest.version if latest else 0
