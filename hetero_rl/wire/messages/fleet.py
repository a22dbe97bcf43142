"""The run and its workers at a glance."""

import dataclasses
from collections.abc import Mapping

from hetero_rl.wire.messages.run import RunDescription
from hetero_rl.wire.messages.trajectories import ScoreBatch
from hetero_rl.wire.messages.weights import ProbeResult
from hetero_rl.wire.messages.workers import Capabilities, NumericsRecord, WorkerState

__all__ = [
    "Event",
    "QueueCounts",
    "RunStatus",
    "ScoreStatus",
    "WorkerSummary",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSummary:
    """One worker as the hub sees it."""

    worker_name: str
    worker_epoch: int
    backend: str
    state: WorkerState
    state_reason: str
    capabilities: Capabilities
    numerics: NumericsRecord
    loaded_weight_version: int
    leases: int
    completions: int
    generated_tokens: int
    busy_seconds: float
    silence: float
    """Seconds since its last call."""
    last_probe: ProbeResult | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Numbers of groups in each stage."""

    queued: int = 0
    leased: int = 0
    finished: int = 0
    taken: int = 0
    committed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The run at a glance."""

    run: RunDescription | None
    step: int
    total_steps: int
    training: QueueCounts
    evaluation: QueueCounts
    counters: Mapping[str, int]
    trainer_connected: bool
    uptime: float
    """Seconds since the hub started."""
    groups_per_step: int
    max_lag: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a person may want to know."""

    sequence: int
    occurred_at: float
    """Seconds since the epoch, by the hub's clock."""
    kind: str
    worker_name: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStatus:
    """What became of one score that a calibration asked for."""

    worker_name: str
    scores: ScoreBatch | None = None
    """None until they are there."""
    failure: str = ""
    """Why they will never come; empty otherwise."""
