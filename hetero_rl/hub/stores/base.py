"""The persistence seam of the hub.

    handler ──► HubStore ──► SqliteStore (journal.sqlite, WAL)
                        └──► MemoryStore (tests, dry runs)

`tests/contract/hub_store` is the suite that every implementation passes.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from hetero_rl.errors import HeteroRLError
from hetero_rl.hub.stores.records import (
    GroupRow,
    GroupState,
    LeaseRow,
    ProbeRow,
    RetainedSequence,
    RunRecord,
    ScoreRow,
    SequenceRow,
    StepCommit,
    StoredBatch,
    SubmissionId,
    SyncRow,
    VersionRow,
    WorkerRow,
)
from hetero_rl.wire.messages import (
    Event,
    PromptGroup,
    Purpose,
    SamplingParameters,
    TrajectoryBatch,
    WeightManifest,
)

__all__ = ["ConflictError", "HubStore"]


class ConflictError(HeteroRLError):
    """Rows contradict each other: a fault of the hub, not of its disk."""


class HubStore(ABC):  # ruff: ignore[too-many-public-methods] one method for each thing the hub remembers
    """Everything that the hub remembers.

    Constraints on every implementation:

    - All calls but `sync` MUST come from one thread, between `begin` and `commit` or `rollback`.
    - `commit` MUST return only when everything since `begin` survives the death of the process, for a store on disk; it
      MUST return False without touching the disk when nothing was written.
    - `sync` MUST return only when every commit that returned before it was called survives the death of the machine, for a store
      on disk. It may be called from another thread, beside everything else.
    - `rollback` MUST leave exactly what the last `commit` left. An exception out of `nested` MUST undo exactly what was
      done inside it and nothing before.
    - A full disk MUST raise `DiskFullError` and any other failure to write `StorageError`; committed data MUST stay intact.
    - Reads MUST see the writes of the open transaction.
    - A row of a store on disk that is not as it was stored MUST NOT be returned. Where others can stand in for it (completions,
      outcomes, manifests, routes, probes, scores) it is passed over and told by `take_damage`; anywhere else
      `DamagedJournalError` MUST be raised.
    - Rows that are replaced or removed MUST exist; adding a key twice MUST raise `ConflictError` and leave
      the transaction open.
    """

    # --- transactions -----------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Opens a transaction."""

    @abstractmethod
    def commit(self) -> bool:
        """Ends the transaction; says whether anything was written."""

    @abstractmethod
    def sync(self) -> None:
        """Makes what was committed durable; raises StorageError when nobody can say whether it is."""

    @abstractmethod
    def rollback(self) -> None:
        """Undoes the transaction. Harmless when none is open."""

    @abstractmethod
    @contextmanager
    def nested(self) -> Generator[None]:
        """Undoes what happens inside when an exception leaves it."""

    @abstractmethod
    def writes(self) -> int:
        """A number that every write changes: the same twice within a transaction means that nothing was written between."""

    @abstractmethod
    def probe_write(self) -> None:
        """Writes something small, to find out whether writing works."""

    @abstractmethod
    def close(self) -> None:
        """Ends the store; no call may follow."""

    @abstractmethod
    def take_damage(self) -> tuple[str, ...]:
        """What was found damaged and passed over since the last call, each thing once in the life of the process."""

    # --- the run ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self) -> RunRecord | None:
        """The run; None before the first `put_run`."""

    @abstractmethod
    def put_run(self, run: RunRecord) -> None:
        """Replaces the run."""

    # --- groups -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def add_group(self, group: PromptGroup) -> None:
        """Stores a new group as queued."""

    @abstractmethod
    def group(self, group_id: str) -> GroupRow | None:
        """A group without its bulk; None when unknown."""

    @abstractmethod
    def prompt_group(self, group_id: str) -> PromptGroup:
        """A known group as it was enqueued; prompt and payload are empty once pruned."""

    @abstractmethod
    def sampling(self, group_id: str) -> SamplingParameters:
        """How a known group is sampled."""

    @abstractmethod
    def put_group(self, row: GroupRow) -> None:
        """Replaces the row of a known group."""

    @abstractmethod
    def queued_groups(self, purpose: Purpose, limit: int) -> tuple[GroupRow, ...]:
        """The first `limit` queued groups in ascending order of (ordinal, group id)."""

    @abstractmethod
    def unassigned_training_groups(self) -> tuple[GroupRow, ...]:
        """Training groups without a step, in ascending order of ordinal."""

    @abstractmethod
    def groups_of_step(self, step: int) -> tuple[GroupRow, ...]:
        """Training groups assigned to a step, in ascending order of ordinal."""

    @abstractmethod
    def last_assigned_step(self) -> int:
        """Highest step that training groups are assigned to; 0 without one."""

    @abstractmethod
    def next_train_ordinal(self) -> int:
        """One above the highest ordinal of a training group; 0 without one."""

    @abstractmethod
    def group_counts(self) -> Mapping[tuple[Purpose, GroupState], int]:
        """Number of groups in each stage; walks over all of them."""

    @abstractmethod
    def count_groups(self, purpose: Purpose, state: GroupState) -> int:
        """Number of groups in one stage; cheap when they are few, however long the run is."""

    # --- leases -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def add_lease(self, lease: LeaseRow) -> None:
        """Stores a lease."""

    @abstractmethod
    def lease(self, lease_id: str) -> LeaseRow | None:
        """A lease that has not ended."""

    @abstractmethod
    def leases(self, worker_name: str | None = None) -> tuple[LeaseRow, ...]:
        """Leases that have not ended, of one worker or of all."""

    @abstractmethod
    def count_leases(self) -> int:
        """Number of leases that have not ended; cheap."""

    @abstractmethod
    def remove_lease(self, lease_id: str) -> None:
        """Ends a lease."""

    # --- results ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def has_submission(self, submission: SubmissionId) -> bool:
        """Whether a submission was ever stored; remembered for the whole run, pruning included."""

    @abstractmethod
    def add_submission(
        self,
        submission: SubmissionId,
        lease_id: str,
        backend: str,
        batch: TrajectoryBatch,
        sequences: Sequence[SequenceRow],
    ) -> None:
        """Stores completions under their submission's identity, `sequences` in the order of the batch."""

    @abstractmethod
    def drop_completions(self, group_id: str) -> None:
        """Removes a group's completions, so that they can be stored again; that they were submitted stays known."""

    @abstractmethod
    def stored_indices(self, group_id: str) -> frozenset[int]:
        """Sample indices of a group that are stored."""

    @abstractmethod
    def batches(self, group_id: str) -> tuple[StoredBatch, ...]:
        """Stored completions of a group in the order of arrival; without those that were pruned."""

    @abstractmethod
    def sequences(self, group_id: str) -> tuple[SequenceRow, ...]:
        """Scalars of a group's completions by sample index; never pruned."""

    # --- steps ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def add_commit(self, commit: StepCommit) -> None:
        """Stores an applied step with its outcomes."""

    @abstractmethod
    def commit_of(self, step: int) -> StepCommit | None:
        """The commit of a step that is not abandoned."""

    @abstractmethod
    def abandon_after(self, step: int) -> int:
        """Marks commits and weight versions of steps above `step` as abandoned; returns how many commits were."""

    # --- retention --------------------------------------------------------------------------------------------------

    @abstractmethod
    def prunable_groups(self, train_step: int, evaluation_step: int) -> tuple[str, ...]:
        """Ids of groups whose columns are still there and may go.

        These are committed training groups of steps up to `train_step`, and taken evaluation groups whose `step` is at
        most `evaluation_step`.
        """

    @abstractmethod
    def retain(self, sequence: RetainedSequence) -> None:
        """Puts a sequence into the reservoir."""

    @abstractmethod
    def retained_ranks(self) -> tuple[int, ...]:
        """Ranks in the reservoir, ascending."""

    @abstractmethod
    def trim_retained(self, size: int) -> None:
        """Removes all but the `size` lowest ranks, and prompts and payloads that nothing retained needs."""

    @abstractmethod
    def prune_group(self, group_id: str) -> None:
        """Removes a group's columns; its prompt and payload too unless the reservoir holds one of its sequences."""

    @abstractmethod
    def prune_commit_log_probs(self, step: int) -> None:
        """Removes the trainer's log-probabilities of commits of steps up to `step`."""

    # --- weight versions --------------------------------------------------------------------------------------------

    @abstractmethod
    def add_version(self, manifest: WeightManifest) -> None:
        """Stores a version; it becomes the latest."""

    @abstractmethod
    def manifest(self, version: int) -> WeightManifest | None:
        """Manifest of a version; None when it was never published."""

    @abstractmethod
    def version(self, version: int) -> VersionRow | None:
        """A version without its manifest."""

    @abstractmethod
    def versions(self) -> tuple[VersionRow, ...]:
        """All versions whose blobs are kept, ascending."""

    @abstractmethod
    def latest_version(self) -> VersionRow | None:
        """Highest version; None before the first."""

    @abstractmethod
    def mark_version_pruned(self, version: int) -> None:
        """Says that a version's blobs are no longer kept; its row stays."""

    @abstractmethod
    def add_route(self, manifest: WeightManifest) -> None:
        """Stores another way to a version, from another base than the version's own manifest."""

    @abstractmethod
    def route(self, version: int, base_version: int) -> WeightManifest | None:
        """Another way to a version; None when there never was one from that base."""

    @abstractmethod
    def routes(self) -> tuple[WeightManifest, ...]:
        """Other ways to versions whose blobs are kept, by version and base."""

    @abstractmethod
    def mark_route_pruned(self, version: int, base_version: int) -> None:
        """Says that the blobs of another way are no longer kept; its row stays."""

    # --- workers ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_worker(self, worker: WorkerRow) -> None:
        """Stores or replaces a worker under its name."""

    @abstractmethod
    def worker(self, worker_name: str) -> WorkerRow | None:
        """A worker by name."""

    @abstractmethod
    def workers(self) -> tuple[WorkerRow, ...]:
        """All workers by name, also those that died or left."""

    @abstractmethod
    def add_completions(self, worker_name: str, completions: int) -> None:
        """Adds to a known worker's count of stored completions."""

    @abstractmethod
    def add_probe(self, probe: ProbeRow) -> None:
        """Stores a scored probe card."""

    @abstractmethod
    def probes(self, worker_name: str) -> tuple[ProbeRow, ...]:
        """Scored probe cards of a worker, oldest first."""

    @abstractmethod
    def add_sync(self, row: SyncRow) -> bool:
        """Stores how a worker came to a version; False when that incarnation has reported the version before."""

    @abstractmethod
    def syncs(self) -> tuple[SyncRow, ...]:
        """How workers came to versions, in the order in which the hub heard of it."""

    # --- scores -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_score(self, row: ScoreRow) -> None:
        """Stores or replaces a score under its id."""

    @abstractmethod
    def score(self, score_id: str) -> ScoreRow | None:
        """A score by id."""

    @abstractmethod
    def queued_scores(self, worker_name: str) -> tuple[ScoreRow, ...]:
        """Scores that wait for a worker, by id."""

    @abstractmethod
    def count_scores(self) -> int:
        """Number of scores ever asked for."""

    @abstractmethod
    def has_score_submission(self, key: SubmissionId) -> bool:
        """Whether this submission brought a score."""

    # --- what happened ----------------------------------------------------------------------------------------------

    @abstractmethod
    def add_event(self, occurred_at: float, kind: str, worker_name: str, message: str) -> None:
        """Appends to the run's history."""

    @abstractmethod
    def events(self, after_sequence: int, limit: int) -> tuple[Event, ...]:
        """Events after a position, oldest first."""

    @abstractmethod
    def count(self, counter: str, amount: int = 1) -> None:
        """Adds to a named counter."""

    @abstractmethod
    def counters(self) -> Mapping[str, int]:
        """All counters that are not 0, by name."""
