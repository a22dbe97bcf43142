"""The store in memory: what tests and dry runs use. Nothing survives the process.

A transaction is a copy of the tables: rows are frozen, so copying the dictionaries that hold them is enough.
"""

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.records import (
    GroupRow,
    GroupState,
    LeaseRow,
    ProbeRow,
    RetainedSequence,
    RunRecord,
    ScoreRow,
    ScoreState,
    SequenceRow,
    StepCommit,
    StoredBatch,
    SubmissionId,
    SyncRow,
    VersionRow,
    WorkerRow,
)
from hetero_rl.wire.columns import Int32Bytes
from hetero_rl.wire.messages import (
    Event,
    PromptGroup,
    Purpose,
    SamplingParameters,
    TrajectoryBatch,
    WeightManifest,
)

__all__ = ["MemoryStore"]


@dataclasses.dataclass(slots=True)
class _Tables:
    run: list[RunRecord] = dataclasses.field(default_factory=list)
    groups: dict[str, GroupRow] = dataclasses.field(default_factory=dict)
    prompts: dict[str, PromptGroup] = dataclasses.field(default_factory=dict)
    leases: dict[str, LeaseRow] = dataclasses.field(default_factory=dict)
    submissions: dict[SubmissionId, str] = dataclasses.field(default_factory=dict)
    sequences: dict[tuple[str, int], SequenceRow] = dataclasses.field(default_factory=dict)
    columns: dict[SubmissionId, StoredBatch] = dataclasses.field(default_factory=dict)
    retained: dict[int, RetainedSequence] = dataclasses.field(default_factory=dict)
    versions: dict[int, VersionRow] = dataclasses.field(default_factory=dict)
    manifests: dict[int, WeightManifest] = dataclasses.field(default_factory=dict)
    routes: dict[tuple[int, int], WeightManifest] = dataclasses.field(default_factory=dict)
    pruned_routes: dict[tuple[int, int], bool] = dataclasses.field(default_factory=dict)
    commits: list[StepCommit] = dataclasses.field(default_factory=list)
    workers: dict[str, WorkerRow] = dataclasses.field(default_factory=dict)
    probes: list[ProbeRow] = dataclasses.field(default_factory=list)
    syncs: dict[tuple[str, int, int], SyncRow] = dataclasses.field(default_factory=dict)
    scores: dict[str, ScoreRow] = dataclasses.field(default_factory=dict)
    events: list[Event] = dataclasses.field(default_factory=list)
    counters: dict[str, int] = dataclasses.field(default_factory=dict)

    def copy(self) -> "_Tables":
        return _Tables(
            **{field.name: copy.copy(getattr(self, field.name)) for field in dataclasses.fields(self)}
        )


K = TypeVar("K")
V = TypeVar("V")


def _add_once(table: dict[K, V], key: K, value: V) -> None:
    if key in table:
        raise ConflictError(f"{key!r} is in the store already")
    table[key] = value


class MemoryStore(HubStore):  # ruff: ignore[too-many-public-methods] those of the interface
    """`HubStore` without a disk."""

    def __init__(self) -> None:
        self._tables = _Tables()
        self._before: _Tables | None = None
        self._writes = itertools.count()

    def begin(self) -> None:
        """See `HubStore`."""
        if self._before is not None:
            raise ConflictError("a transaction is open already")
        self._before = self._tables.copy()

    def commit(self) -> bool:
        """See `HubStore`."""
        wrote = self._tables != self._before
        self._before = None
        return wrote

    def rollback(self) -> None:
        """See `HubStore`."""
        if self._before is not None:
            self._tables, self._before = self._before, None

    @contextmanager
    def nested(self) -> Generator[None]:
        """See `HubStore`."""
        before = self._tables.copy()
        try:
            yield
        except BaseException:
            self._tables = before
            raise

    def writes(self) -> int:
        """See `HubStore`; takes for granted that something was written."""
        return next(self._writes)

    def probe_write(self) -> None:
        """See `HubStore`."""

    def take_damage(self) -> tuple[str, ...]:  # ruff: ignore[no-self-use] nothing flips bits of this store
        """See `HubStore`."""
        return ()

    def close(self) -> None:
        """See `HubStore`."""

    def run(self) -> RunRecord | None:
        """See `HubStore`."""
        return self._tables.run[0] if self._tables.run else None

    def put_run(self, run: RunRecord) -> None:
        """See `HubStore`."""
        self._tables.run = [run]

    def add_group(self, group: PromptGroup) -> None:
        """See `HubStore`."""
        row = GroupRow(
            group_id=group.group_id,
            purpose=group.purpose,
            ordinal=group.ordinal,
            group_size=group.group_size,
            min_weight_version=group.min_weight_version,
        )
        _add_once(self._tables.groups, group.group_id, row)
        self._tables.prompts[group.group_id] = group

    def group(self, group_id: str) -> GroupRow | None:
        """See `HubStore`."""
        return self._tables.groups.get(group_id)

    def prompt_group(self, group_id: str) -> PromptGroup:
        """See `HubStore`."""
        if group_id not in self._tables.prompts:
            raise ConflictError(f"group {group_id!r} is not in the store")
        return self._tables.prompts[group_id]

    def sampling(self, group_id: str) -> SamplingParameters:
        """See `HubStore`."""
        return self.prompt_group(group_id).sampling

    def put_group(self, row: GroupRow) -> None:
        """See `HubStore`."""
        if row.group_id not in self._tables.groups:
            raise ConflictError(f"group {row.group_id!r} is not in the store")
        self._tables.groups[row.group_id] = row

    def queued_groups(self, purpose: Purpose, limit: int) -> tuple[GroupRow, ...]:
        """See `HubStore`."""
        queued = [
            row
            for row in self._tables.groups.values()
            if row.purpose is purpose and row.state is GroupState.QUEUED
        ]
        return tuple(sorted(queued, key=lambda row: (row.ordinal, row.group_id))[:limit])

    def _training_groups(self) -> list[GroupRow]:
        rows = [row for row in self._tables.groups.values() if row.purpose is Purpose.TRAIN]
        return sorted(rows, key=lambda row: row.ordinal)

    def unassigned_training_groups(self) -> tuple[GroupRow, ...]:
        """See `HubStore`."""
        return self.groups_of_step(0)

    def groups_of_step(self, step: int) -> tuple[GroupRow, ...]:
        """See `HubStore`."""
        return tuple(row for row in self._training_groups() if row.step == step)

    def last_assigned_step(self) -> int:
        """See `HubStore`."""
        return max((row.step for row in self._training_groups()), default=0)

    def next_train_ordinal(self) -> int:
        """See `HubStore`."""
        return max((row.ordinal + 1 for row in self._training_groups()), default=0)

    def group_counts(self) -> Mapping[tuple[Purpose, GroupState], int]:
        """See `HubStore`."""
        return Counter((row.purpose, row.state) for row in self._tables.groups.values())

    def count_groups(self, purpose: Purpose, state: GroupState) -> int:
        """See `HubStore`."""
        return self.group_counts().get((purpose, state), 0)

    def add_lease(self, lease: LeaseRow) -> None:
        """See `HubStore`."""
        _add_once(self._tables.leases, lease.lease_id, lease)

    def lease(self, lease_id: str) -> LeaseRow | None:
        """See `HubStore`."""
        return self._tables.leases.get(lease_id)

    def leases(self, worker_name: str | None = None) -> tuple[LeaseRow, ...]:
        """See `HubStore`."""
        found = [row for row in self._tables.leases.values() if worker_name in {None, row.worker_name}]
        return tuple(sorted(found, key=lambda row: row.lease_id))

    def count_leases(self) -> int:
        """See `HubStore`."""
        return len(self._tables.leases)

    def remove_lease(self, lease_id: str) -> None:
        """See `HubStore`."""
        if self._tables.leases.pop(lease_id, None) is None:
            raise ConflictError(f"lease {lease_id!r} is not in the store")

    def has_submission(self, submission: SubmissionId) -> bool:
        """See `HubStore`."""
        return submission in self._tables.submissions

    def add_submission(
        self,
        submission: SubmissionId,
        lease_id: str,
        backend: str,
        batch: TrajectoryBatch,
        sequences: Sequence[SequenceRow],
    ) -> None:
        """See `HubStore`."""
        _add_once(self._tables.submissions, submission, lease_id)
        for row in sequences:
            _add_once(self._tables.sequences, (row.group_id, row.sample_index), row)
        self._tables.columns[submission] = StoredBatch(batch, submission.worker_name, backend)

    def drop_completions(self, group_id: str) -> None:
        """See `HubStore`."""
        self._tables.sequences = {
            key: row for key, row in self._tables.sequences.items() if row.group_id != group_id
        }
        self._tables.columns = {
            key: stored for key, stored in self._tables.columns.items() if stored.batch.group_id != group_id
        }

    def stored_indices(self, group_id: str) -> frozenset[int]:
        """See `HubStore`."""
        return frozenset(index for known, index in self._tables.sequences if known == group_id)

    def batches(self, group_id: str) -> tuple[StoredBatch, ...]:
        """See `HubStore`."""
        return tuple(stored for stored in self._tables.columns.values() if stored.batch.group_id == group_id)

    def sequences(self, group_id: str) -> tuple[SequenceRow, ...]:
        """See `HubStore`."""
        found = [row for row in self._tables.sequences.values() if row.group_id == group_id]
        return tuple(sorted(found, key=lambda row: row.sample_index))

    def add_commit(self, commit: StepCommit) -> None:
        """See `HubStore`."""
        if not commit.abandoned and self.commit_of(commit.step) is not None:
            raise ConflictError(f"step {commit.step} is in the store already")
        self._tables.commits.append(commit)

    def commit_of(self, step: int) -> StepCommit | None:
        """See `HubStore`."""
        counting = (commit for commit in self._tables.commits if not commit.abandoned)
        return next((commit for commit in counting if commit.step == step), None)

    def abandon_after(self, step: int) -> int:
        """See `HubStore`."""
        abandoned = 0
        for position, commit in enumerate(self._tables.commits):
            if commit.step > step and not commit.abandoned:
                self._tables.commits[position] = dataclasses.replace(commit, abandoned=True)
                abandoned += 1
        for row in tuple(self._tables.versions.values()):
            if row.step > step:
                self._tables.versions[row.version] = dataclasses.replace(row, abandoned=True)
        return abandoned

    def prune_commit_log_probs(self, step: int) -> None:
        """See `HubStore`."""
        for position, commit in enumerate(self._tables.commits):
            if commit.step <= step:
                self._tables.commits[position] = dataclasses.replace(commit, log_probs=None)

    def prunable_groups(self, train_step: int, evaluation_step: int) -> tuple[str, ...]:
        """See `HubStore`."""
        wanted = {
            Purpose.TRAIN: (GroupState.COMMITTED, train_step),
            Purpose.EVALUATION: (GroupState.TAKEN, evaluation_step),
        }
        found = []
        for purpose, (state, step) in wanted.items():
            held = {stored.batch.group_id for stored in self._tables.columns.values()}
            rows = [self._tables.groups[group_id] for group_id in sorted(held)]
            found += [
                row.group_id
                for row in rows
                if row.purpose is purpose and row.state is state and row.step <= step
            ]
        return tuple(found)

    def retain(self, sequence: RetainedSequence) -> None:
        """See `HubStore`."""
        self._tables.retained[sequence.rank] = sequence

    def retained_ranks(self) -> tuple[int, ...]:
        """See `HubStore`."""
        return tuple(sorted(self._tables.retained))

    def trim_retained(self, size: int) -> None:
        """See `HubStore`."""
        evicted = [self._tables.retained.pop(rank) for rank in self.retained_ranks()[size:]]
        for group_id in {sequence.group_id for sequence in evicted}:
            if not self.batches(group_id):
                self._drop_prompt(group_id)

    def prune_group(self, group_id: str) -> None:
        """See `HubStore`."""
        self._tables.columns = {
            key: stored for key, stored in self._tables.columns.items() if stored.batch.group_id != group_id
        }
        self._drop_prompt(group_id)

    def _drop_prompt(self, group_id: str) -> None:
        if not any(sequence.group_id == group_id for sequence in self._tables.retained.values()):
            self._tables.prompts[group_id] = dataclasses.replace(
                self._tables.prompts[group_id], prompt_token_ids=Int32Bytes(b""), payload=b""
            )

    def add_version(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        row = VersionRow(
            manifest.version, manifest.step, manifest.state_digest, abandoned=False, pruned=False
        )
        _add_once(self._tables.versions, manifest.version, row)
        self._tables.manifests[manifest.version] = manifest

    def manifest(self, version: int) -> WeightManifest | None:
        """See `HubStore`."""
        return self._tables.manifests.get(version)

    def version(self, version: int) -> VersionRow | None:
        """See `HubStore`."""
        return self._tables.versions.get(version)

    def versions(self) -> tuple[VersionRow, ...]:
        """See `HubStore`."""
        return tuple(row for _, row in sorted(self._tables.versions.items()) if not row.pruned)

    def latest_version(self) -> VersionRow | None:
        """See `HubStore`."""
        versions = self._tables.versions
        return versions[max(versions)] if versions else None

    def mark_version_pruned(self, version: int) -> None:
        """See `HubStore`."""
        if version not in self._tables.versions:
            raise ConflictError(f"weight version {version} is not in the store")
        self._tables.versions[version] = dataclasses.replace(self._tables.versions[version], pruned=True)

    def add_route(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        _add_once(self._tables.routes, (manifest.version, manifest.base_version), manifest)

    def route(self, version: int, base_version: int) -> WeightManifest | None:
        """See `HubStore`."""
        return self._tables.routes.get((version, base_version))

    def routes(self) -> tuple[WeightManifest, ...]:
        """See `HubStore`."""
        kept = self._tables.routes.keys() - self._tables.pruned_routes.keys()
        return tuple(self._tables.routes[key] for key in sorted(kept))

    def mark_route_pruned(self, version: int, base_version: int) -> None:
        """See `HubStore`."""
        if (version, base_version) not in self._tables.routes:
            raise ConflictError(f"no way from version {base_version} to {version} is in the store")
        self._tables.pruned_routes[version, base_version] = True

    def put_worker(self, worker: WorkerRow) -> None:
        """See `HubStore`."""
        probe = worker.last_probe
        if probe is not None:
            worker = dataclasses.replace(worker, last_probe=dataclasses.replace(probe, log_probs=None))
        self._tables.workers[worker.request.worker_name] = worker

    def worker(self, worker_name: str) -> WorkerRow | None:
        """See `HubStore`."""
        return self._tables.workers.get(worker_name)

    def workers(self) -> tuple[WorkerRow, ...]:
        """See `HubStore`."""
        return tuple(worker for _, worker in sorted(self._tables.workers.items()))

    def add_completions(self, worker_name: str, completions: int) -> None:
        """See `HubStore`."""
        worker = self._tables.workers[worker_name]
        self._tables.workers[worker_name] = dataclasses.replace(
            worker, completions=worker.completions + completions
        )

    def add_probe(self, probe: ProbeRow) -> None:
        """See `HubStore`."""
        self._tables.probes.append(probe)

    def probes(self, worker_name: str) -> tuple[ProbeRow, ...]:
        """See `HubStore`."""
        return tuple(probe for probe in self._tables.probes if probe.worker_name == worker_name)

    def add_sync(self, row: SyncRow) -> bool:
        """See `HubStore`."""
        key = (row.worker_name, row.worker_epoch, row.sync.weight_version)
        return self._tables.syncs.setdefault(key, row) is row

    def syncs(self) -> tuple[SyncRow, ...]:
        """See `HubStore`."""
        return tuple(self._tables.syncs.values())

    def put_score(self, row: ScoreRow) -> None:
        """See `HubStore`."""
        self._tables.scores[row.score_id] = row

    def score(self, score_id: str) -> ScoreRow | None:
        """See `HubStore`."""
        return self._tables.scores.get(score_id)

    def queued_scores(self, worker_name: str) -> tuple[ScoreRow, ...]:
        """See `HubStore`."""
        rows = (row for _, row in sorted(self._tables.scores.items()))
        return tuple(row for row in rows if row.worker_name == worker_name and row.state is ScoreState.QUEUED)

    def count_scores(self) -> int:
        """See `HubStore`."""
        return len(self._tables.scores)

    def has_score_submission(self, key: SubmissionId) -> bool:
        """See `HubStore`."""
        return any(row.submission == key for row in self._tables.scores.values())

    def add_event(self, occurred_at: float, kind: str, worker_name: str, message: str) -> None:
        """See `HubStore`."""
        event = Event(
            sequence=len(self._tables.events) + 1,
            occurred_at=occurred_at,
            kind=kind,
            worker_name=worker_name,
            message=message,
        )
        self._tables.events.append(event)

    def events(self, after_sequence: int, limit: int) -> tuple[Event, ...]:
        """See `HubStore`."""
        return tuple(self._tables.events[after_sequence : after_sequence + limit])

    def count(self, counter: str, amount: int = 1) -> None:
        """See `HubStore`."""
        self._tables.counters[counter] = self._tables.counters.get(counter, 0) + amount

    def counters(self) -> Mapping[str, int]:
        """See `HubStore`."""
        return {name: value for name, value in sorted(self._tables.counters.items()) if value}
