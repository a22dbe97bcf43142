"""The run, its prompt groups and their leases in memory."""

from collections import Counter
from collections.abc import Mapping

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.memory_tables import Tables, add_once
from hetero_rl.hub.stores.records import (
    GroupRow,
    GroupState,
    LeaseRow,
    RunRecord,
)
from hetero_rl.wire.messages import (
    PromptGroup,
    Purpose,
    SamplingParameters,
)

__all__ = ["MemoryGroups"]


class MemoryGroups(HubStore):
    """Tables `run`, `groups`, `prompts` and `leases`."""

    _tables: Tables

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
        add_once(self._tables.groups, group.group_id, row)
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
        add_once(self._tables.leases, lease.lease_id, lease)

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
