"""What the hub keeps, as frozen rows. Bulk columns are in `TrajectoryBatch` and `PromptGroup`, never in these."""

import dataclasses
import enum
from typing import NamedTuple

from hetero_rl.wire.columns import Int32Bytes
from hetero_rl.wire.messages import (
    FinishReason,
    JoinRequest,
    ProbeResult,
    PromptGroup,
    Purpose,
    RunRequest,
    SequenceOutcome,
    TrajectoryBatch,
    WeightManifest,
    WeightSync,
    WorkerState,
)


class RunState(enum.IntEnum):
    """Whether the run goes on."""

    OPEN = 1
    """A trainer has it open, or had it open when the hub stopped."""
    DETACHED = 2
    """Closed to be continued."""
    COMPLETE = 3
    """All steps were made: workers leave."""


class GroupState(enum.IntEnum):
    """Stages of a prompt group, in the order it passes them."""

    QUEUED = 0
    LEASED = 1
    FINISHED = 2
    """Every completion is stored. A training group may have a step already: the step keeps its batch after a resume."""
    TAKEN = 3
    COMMITTED = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The one run of a journal."""

    request: RunRequest
    """As the newest trainer opened it."""
    trainer_epoch: int
    state: RunState
    committed_step: int = 0
    """Optimizer steps applied in the history that counts."""
    pruned_step: int = 0
    """Token columns of steps up to this one are gone: no resume from before it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Everything about a group but its bulk."""

    group_id: str
    purpose: Purpose
    ordinal: int
    group_size: int
    min_weight_version: int
    state: GroupState = GroupState.QUEUED
    step: int = 0
    """Training: the optimizer step it is assigned to, from 1; 0 is none. Evaluation: 1 + the steps committed when it was
    taken."""
    attempts: int = 0
    """How often it was leased."""
    admitted_step: int = -1
    """Highest optimizer step of a weight version it was leased under; later leases ask for no less. -1: never leased."""
    oldest_step: int = -1
    """Lowest optimizer step among the versions of its stored tokens; -1 without tokens."""
    stored: int = 0
    """Completions stored."""

    def with_results(self, state: GroupState, stored: int, oldest_step: int) -> "GroupRow":
        """The row after results came. Every submission makes one, and `dataclasses.replace` takes thrice as long."""
        return GroupRow(
            group_id=self.group_id,
            purpose=self.purpose,
            ordinal=self.ordinal,
            group_size=self.group_size,
            min_weight_version=self.min_weight_version,
            state=state,
            step=self.step,
            attempts=self.attempts,
            admitted_step=self.admitted_step,
            oldest_step=oldest_step,
            stored=stored,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A lease that has not ended. When it ends is kept in memory: monotonic time means nothing after a restart."""

    lease_id: str
    group_id: str
    worker_name: str
    worker_epoch: int
    attempt: int
    min_weight_version: int
    sample_indices: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SubmissionId:
    """Identity of a submission within the run."""

    worker_name: str
    worker_epoch: int
    sequence: int


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBatch:
    """One submission's completions and who made them."""

    batch: TrajectoryBatch
    worker_name: str
    backend: str


class SequenceRow(NamedTuple):
    """Scalars of one completion; kept for every completion of the run."""

    group_id: str
    sample_index: int
    length: int
    finish_reason: FinishReason
    oldest_version: int
    newest_version: int
    oldest_step: int
    newest_step: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetainedSequence:
    """Token columns of one completion of the reservoir sample. `rank` orders the reservoir: the lowest stay."""

    rank: int
    group_id: str
    sample_index: int
    token_ids: bytes
    log_probs: bytes | None
    action_mask: bytes | None
    trainer_log_probs: bytes | None
    """Of the trainer's policy when the step was committed; None when the run does not keep them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepCommit:
    """One applied optimizer step."""

    step: int
    trainer_epoch: int
    committed_at: float
    outcomes: tuple[SequenceOutcome, ...]
    log_probs: bytes | None
    abandoned: bool = False
    """Whether a resume from before it made it not count."""


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRow:
    """A weight version without its manifest."""

    version: int
    step: int
    state_digest: str
    abandoned: bool
    """Whether a resume from before its step took it out of the run's history: nothing starts under it any more."""
    pruned: bool
    """Whether its blobs may be gone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker name and its newest incarnation."""

    request: JoinRequest
    worker_epoch: int
    state: WorkerState
    state_reason: str = ""
    completions: int = 0
    """Stored since it joined."""
    last_probe: ProbeResult | None = None
    """Without its log-probabilities."""
    must_pass_probe: bool = False
    """Readmitted or restarted after a quarantine: gets work again after it passed a probe card."""
    draining: bool = False
    """Asked to finish what it has; outlives being declared dead."""
    former_boot_ids: tuple[str, ...] = ()
    """Boot ids of processes that held the name before."""

    def with_completions(self, completions: int) -> "WorkerRow":
        """The row with as many more. Every submission makes one, and `dataclasses.replace` takes thrice as long."""
        return WorkerRow(
            request=self.request,
            worker_epoch=self.worker_epoch,
            state=self.state,
            state_reason=self.state_reason,
            completions=self.completions + completions,
            last_probe=self.last_probe,
            must_pass_probe=self.must_pass_probe,
            draining=self.draining,
            former_boot_ids=self.former_boot_ids,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One scored probe card."""

    worker_name: str
    worker_epoch: int
    numerics_id: str
    result: ProbeResult
    accepted: bool
    occurred_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyncRow:
    """How a worker came to a weight version."""

    worker_name: str
    worker_epoch: int
    sync: WeightSync
    occurred_at: float
    """When the hub heard of it, seconds since the epoch."""


class ScoreState(enum.IntEnum):
    """Stages of a score."""

    QUEUED = 0
    LEASED = 1
    DONE = 2
    FAILED = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """Given tokens that one worker is asked to score, and its answer."""

    score_id: str
    worker_name: str
    weight_version: int
    lengths: tuple[int, ...]
    token_ids: Int32Bytes
    state: ScoreState = ScoreState.QUEUED
    attempts: int = 0
    """How often it was leased."""
    submission: SubmissionId | None = None
    """What brought the answer."""
    numerics_id: str = ""
    """Numerics of the answer."""
    log_probs: bytes | None = None
    """float32, for each sequence of L tokens L - 1 of them."""
    failure: str = ""
    """Why there will be no answer."""


__all__ = [
    "GroupRow",
    "GroupState",
    "LeaseRow",
    "ProbeRow",
    "PromptGroup",
    "RetainedSequence",
    "RunRecord",
    "RunState",
    "ScoreRow",
    "ScoreState",
    "SequenceRow",
    "StepCommit",
    "StoredBatch",
    "SubmissionId",
    "SyncRow",
    "VersionRow",
    "WeightManifest",
    "WorkerRow",
]
