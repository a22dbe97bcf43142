"""Statements on the run, its prompt groups and their leases."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.codec import decode, encode
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import GroupRow, GroupState, LeaseRow, RunRecord, RunState
from hetero_rl.hub.stores.sums import row_sum
from hetero_rl.wire.columns import Int32Bytes
from hetero_rl.wire.messages import PromptGroup, Purpose, RunRequest, SamplingParameters

__all__ = ["GroupTables"]

_GROUP_FIELDS = tuple(field.name for field in dataclasses.fields(GroupRow))
_GROUP_COLUMNS = ", ".join(_GROUP_FIELDS)
_SELECT_GROUP = f"SELECT {_GROUP_COLUMNS}, row_sum FROM groups"  # ruff: ignore[hardcoded-sql-expression] names of our own fields
_INSERT_GROUP = f"INSERT INTO groups VALUES ({', '.join('?' * (len(_GROUP_FIELDS) + 1))})"  # ruff: ignore[hardcoded-sql-expression] the same
# SQLite rewrites the entry of every index whose columns a statement sets, also to the value they have: most updates leave
# the step alone, and then the index by step.
_UPDATE_GROUP_IN_PLACE = (
    "UPDATE groups SET state = ?, attempts = ?, admitted_step = ?, oldest_step = ?, stored = ?, row_sum = ? "
    "WHERE group_id = ? AND step = ?"
)
_UPDATE_GROUP = (
    "UPDATE groups SET state = ?, step = ?, attempts = ?, admitted_step = ?, oldest_step = ?, stored = ?, row_sum = ? "
    "WHERE group_id = ?"
)


_PROMPT = "SELECT prompt_token_ids, sampling, payload, row_sum FROM prompts WHERE group_id = ?"
_DELETE_LEASE = "DELETE FROM leases WHERE lease_id = ?"


def _group_values(row: GroupRow) -> tuple[object, ...]:
    """A row's values in the order of its columns, which is that of its fields."""
    return (
        row.group_id,
        int(row.purpose),
        row.ordinal,
        row.group_size,
        row.min_weight_version,
        int(row.state),
        row.step,
        row.attempts,
        row.admitted_step,
        row.oldest_step,
        row.stored,
    )


def _group_row(row: Row) -> GroupRow:
    values: dict[str, Any] = dict(zip(_GROUP_FIELDS, row, strict=True))
    values["purpose"] = Purpose(values["purpose"])
    values["state"] = GroupState(values["state"])
    return GroupRow(**values)


@functools.lru_cache(maxsize=1024)
def _indices(text: str) -> tuple[int, ...]:
    """Sample indices of a lease: nearly all leases are of whole groups of one size."""
    return tuple(json.loads(text))


def _lease_row(row: Row) -> LeaseRow:
    return LeaseRow(
        lease_id=row[0],
        group_id=row[1],
        worker_name=row[2],
        worker_epoch=row[3],
        attempt=row[4],
        min_weight_version=row[5],
        sample_indices=_indices(row[6]),
    )


class GroupTables(HubStore):
    """Tables `run`, `groups`, `prompts` and `leases`."""

    _journal: JournalConnection

    def run(self) -> RunRecord | None:
        """See `HubStore`."""
        return self._journal.cache.get("run", None, self._run)

    def _run(self) -> RunRecord | None:
        row = self._journal.row(
            "SELECT request, trainer_epoch, state, committed_step, pruned_step, run_id, row_sum FROM run"
        )
        if row is None:
            return None
        self._journal.sums.require("the run", row[-1], row[:-1])
        return RunRecord(
            request=decode(RunRequest, row[0]),
            trainer_epoch=row[1],
            state=RunState(row[2]),
            committed_step=row[3],
            pruned_step=row[4],
        )

    def put_run(self, run: RunRecord) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("run")
        values = (
            encode(run.request),
            run.trainer_epoch,
            int(run.state),
            run.committed_step,
            run.pruned_step,
            run.request.run_id,
        )
        self._journal.execute(
            "INSERT OR REPLACE INTO run (one, request, trainer_epoch, state, committed_step, pruned_step, run_id, row_sum) "
            "VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
            (*values, row_sum(values)),
        )

    def add_group(self, group: PromptGroup) -> None:
        """See `HubStore`."""
        row = GroupRow(
            group_id=group.group_id,
            purpose=group.purpose,
            ordinal=group.ordinal,
            group_size=group.group_size,
            min_weight_version=group.min_weight_version,
        )
        self._journal.cache.drop("group", group.group_id)
        values = _group_values(row)
        self._journal.execute(_INSERT_GROUP, (*values, row_sum(values)))
        prompt, sampling = group.prompt_token_ids, encode(group.sampling)
        prompt_sum = row_sum((group.group_id, sampling), prompt, group.payload)
        self._journal.execute(
            "INSERT INTO prompts VALUES (?, ?, ?, ?, ?)",
            (group.group_id, prompt, sampling, group.payload, prompt_sum),
        )

    def group(self, group_id: str) -> GroupRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("group", group_id, lambda: self._group(group_id))

    def _group(self, group_id: str) -> GroupRow | None:
        row = self._journal.row(f"{_SELECT_GROUP} WHERE group_id = ?", (group_id,))
        return None if row is None else self._checked_group(row)

    def _checked_group(self, row: Row) -> GroupRow:
        *values, found = row
        self._journal.sums.require(f"group {values[0]!r}", found, values)
        return _group_row(tuple(values))

    def prompt_group(self, group_id: str) -> PromptGroup:
        """See `HubStore`."""
        row = self.group(group_id)
        prompt_token_ids, sampling, payload = self._prompt(group_id)
        if row is None:
            raise ConflictError(f"group {group_id!r} is not in the journal")
        self._journal.cache.put("sampling", group_id, sampling)
        return PromptGroup(
            group_id=group_id,
            ordinal=row.ordinal,
            prompt_token_ids=prompt_token_ids,
            group_size=row.group_size,
            sampling=sampling,
            purpose=row.purpose,
            payload=payload,
            min_weight_version=row.min_weight_version,
        )

    def sampling(self, group_id: str) -> SamplingParameters:
        """See `HubStore`."""
        return self._journal.cache.get("sampling", group_id, lambda: self._sampling(group_id))

    def _sampling(self, group_id: str) -> SamplingParameters:
        return self._prompt(group_id)[1]

    def _prompt(self, group_id: str) -> tuple[Int32Bytes, SamplingParameters, bytes]:
        """Prompt, sampling and payload of a group."""
        row = self._journal.row(_PROMPT, (group_id,))
        if row is None:
            raise ConflictError(f"group {group_id!r} is not in the journal")
        prompt, sampling, payload, found = row
        self._journal.sums.require(
            f"the prompt of group {group_id!r}", found, (group_id, sampling), prompt, payload
        )
        return Int32Bytes(prompt), decode(SamplingParameters, sampling), payload

    def put_group(self, row: GroupRow) -> None:
        """See `HubStore`."""
        known: GroupRow | None = self._journal.cache.known("group", row.group_id)
        self._journal.cache.drop("group", row.group_id)
        found = row_sum(_group_values(row))
        values = (row.attempts, row.admitted_step, row.oldest_step, row.stored, found, row.group_id)
        if known is not None and known.step == row.step:
            self._journal.put_off(_UPDATE_GROUP_IN_PLACE, (int(row.state), *values, row.step))
        else:
            self._replace_group(row, values)
        if row.state is GroupState.LEASED:
            # Its results are what comes next. The cache holds what the statements above left of the row.
            self._journal.cache.put("group", row.group_id, row)

    def _replace_group(self, row: GroupRow, values: Row) -> None:
        changed = self._journal.update(_UPDATE_GROUP_IN_PLACE, (int(row.state), *values, row.step))
        if not changed:
            changed = self._journal.update(_UPDATE_GROUP, (int(row.state), row.step, *values))
        if not changed:
            raise ConflictError(f"group {row.group_id!r} is not in the journal")

    def queued_groups(self, purpose: Purpose, limit: int) -> tuple[GroupRow, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(
            f"{_SELECT_GROUP} WHERE purpose = ? AND state = ? ORDER BY ordinal, group_id LIMIT ?",
            (int(purpose), int(GroupState.QUEUED), limit),
        )
        return tuple(map(self._checked_group, rows))

    def unassigned_training_groups(self) -> tuple[GroupRow, ...]:
        """See `HubStore`."""
        return self.groups_of_step(0)

    def groups_of_step(self, step: int) -> tuple[GroupRow, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(
            f"{_SELECT_GROUP} WHERE purpose = ? AND step = ? ORDER BY ordinal", (int(Purpose.TRAIN), step)
        )
        return tuple(map(self._checked_group, rows))

    def last_assigned_step(self) -> int:
        """See `HubStore`."""
        row = self._journal.row("SELECT max(step) FROM groups WHERE purpose = ?", (int(Purpose.TRAIN),))
        return (row[0] if row else None) or 0

    def next_train_ordinal(self) -> int:
        """See `HubStore`."""
        statement = "SELECT max(ordinal) FROM groups WHERE purpose = ? AND state = ?"
        found = [
            self._journal.rows(statement, (int(Purpose.TRAIN), int(state)))[0][0] for state in GroupState
        ]
        return max((ordinal + 1 for ordinal in found if ordinal is not None), default=0)

    def group_counts(self) -> Mapping[tuple[Purpose, GroupState], int]:
        """See `HubStore`."""
        rows = self._journal.rows("SELECT purpose, state, count(*) FROM groups GROUP BY purpose, state")
        return {(Purpose(purpose), GroupState(state)): number for purpose, state, number in rows}

    def count_groups(self, purpose: Purpose, state: GroupState) -> int:
        """See `HubStore`."""
        rows = self._journal.rows(
            "SELECT count(*) FROM groups WHERE purpose = ? AND state = ?", (int(purpose), int(state))
        )
        return int(rows[0][0])

    def add_lease(self, lease: LeaseRow) -> None:
        """See `HubStore`."""
        values = (
            lease.lease_id,
            lease.group_id,
            lease.worker_name,
            lease.worker_epoch,
            lease.attempt,
            lease.min_weight_version,
            json.dumps(lease.sample_indices),
        )
        self._journal.execute(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*values, row_sum(values))
        )
        self._journal.cache.put("lease", lease.lease_id, lease)

    def lease(self, lease_id: str) -> LeaseRow | None:
        """See `HubStore`."""
        return self._journal.cache.get("lease", lease_id, lambda: self._lease(lease_id))

    def _lease(self, lease_id: str) -> LeaseRow | None:
        row = self._journal.row("SELECT * FROM leases WHERE lease_id = ?", (lease_id,))
        return None if row is None else self._checked_lease(row)

    def _checked_lease(self, row: Row) -> LeaseRow:
        *values, found = row
        self._journal.sums.require(f"lease {values[0]!r}", found, values)
        return _lease_row(tuple(values))

    def leases(self, worker_name: str | None = None) -> tuple[LeaseRow, ...]:
        """See `HubStore`."""
        if worker_name is None:
            rows = self._journal.rows("SELECT * FROM leases ORDER BY lease_id")
        else:
            rows = self._journal.rows(
                "SELECT * FROM leases WHERE worker_name = ? ORDER BY lease_id", (worker_name,)
            )
        return tuple(map(self._checked_lease, rows))

    def count_leases(self) -> int:
        """See `HubStore`."""
        return int(self._journal.rows("SELECT count(*) FROM leases")[0][0])

    def remove_lease(self, lease_id: str) -> None:
        """See `HubStore`."""
        known = self._journal.cache.known("lease", lease_id)
        self._journal.cache.put("lease", lease_id, None)
        if known is not None:
            self._journal.put_off(_DELETE_LEASE, (lease_id,))
        elif not self._journal.update(_DELETE_LEASE, (lease_id,)):
            raise ConflictError(f"lease {lease_id!r} is not in the journal")
