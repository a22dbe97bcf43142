"""Submitted completions, and the reservoir of those whose tokens are kept, in memory."""

import dataclasses
from collections.abc import Sequence

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.memory_tables import Tables, add_once
from hetero_rl.hub.stores.records import (
    GroupState,
    RetainedSequence,
    SequenceRow,
    StoredBatch,
    SubmissionId,
)
from hetero_rl.wire.columns import Int32Bytes
from hetero_rl.wire.messages import (
    Purpose,
    TrajectoryBatch,
)

__all__ = ["MemoryResults"]


class MemoryResults(HubStore):
    """Tables `submissions`, `sequences`, `columns` and `retained`."""

    _tables: Tables

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
        add_once(self._tables.submissions, submission, lease_id)
        for row in sequences:
            add_once(self._tables.sequences, (row.group_id, row.sample_index), row)
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
