"""The tables of the store in memory: rows are frozen, so copying the dictionaries that hold them copies everything."""

import copy
import dataclasses
from typing import TypeVar

from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.records import (
    GroupRow,
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
    WeightManifest,
)

__all__ = ["Tables", "add_once"]


@dataclasses.dataclass(slots=True)
class Tables:
    """Everything that the store holds."""

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

    def copy(self) -> "Tables":
        """Tables that change by themselves."""
        return Tables(
            **{field.name: copy.copy(getattr(self, field.name)) for field in dataclasses.fields(self)}
        )


K = TypeVar("K")
V = TypeVar("V")


def add_once(table: dict[K, V], key: K, value: V) -> None:
    """Adds a row; raises ConflictError when its key is there."""
    if key in table:
        raise ConflictError(f"{key!r} is in the store already")
    table[key] = value
