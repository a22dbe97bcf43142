"""Statements on submitted completions, and on the reservoir of those whose tokens are kept."""

import array
from collections.abc import Sequence

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import GroupState, RetainedSequence, SequenceRow, StoredBatch, SubmissionId
from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, UInt8Bytes
from hetero_rl.wire.messages import FinishReason, Purpose, RoutedExperts, TrajectoryBatch, VersionSpan

__all__ = ["ResultTables"]

_BATCHES = """
SELECT submission_id, worker_name, backend, numerics_id, generation_seconds, token_ids, log_probs, action_mask,
    version_spans, expert_ids, expert_layers, expert_top_k
FROM columns JOIN submissions USING (submission_id) WHERE columns.group_id = ? ORDER BY submission_id
"""
_SEQUENCES = """
SELECT group_id, sample_index, length, finish_reason, oldest_version, newest_version, oldest_step, newest_step
FROM sequences WHERE group_id = ? ORDER BY sample_index
"""
_PRUNABLE = """
SELECT DISTINCT columns.group_id FROM columns JOIN groups USING (group_id)
WHERE purpose = ? AND state = ? AND step <= ? ORDER BY columns.group_id
"""
_DROP_PROMPTS = """
UPDATE prompts SET prompt_token_ids = x'', payload = x'' WHERE group_id = ?
    AND NOT EXISTS (SELECT 1 FROM retained WHERE retained.group_id = prompts.group_id)
"""


def _pack_spans(spans: Sequence[VersionSpan]) -> bytes:
    numbers = array.array("q")
    for span in spans:
        numbers.extend((span.sample, span.start, span.end, span.weight_version))
    return numbers.tobytes()


def _unpack_spans(packed: bytes) -> tuple[VersionSpan, ...]:
    numbers = memoryview(packed).cast("q").tolist()
    return tuple(VersionSpan(*numbers[start : start + 4]) for start in range(0, len(numbers), 4))


def _batch(group_id: str, columns: Row, samples: list[Row]) -> TrajectoryBatch:
    numerics_id, seconds, token_ids, log_probs, action_mask, spans, expert_ids, layers, top_k = columns
    experts = None
    if expert_ids is not None:
        experts = RoutedExperts(expert_ids=Int32Bytes(expert_ids), layers=layers, top_k=top_k)
    return TrajectoryBatch(
        group_id=group_id,
        sample_indices=tuple(row[0] for row in samples),
        lengths=tuple(row[1] for row in samples),
        token_ids=Int32Bytes(token_ids),
        log_probs=None if log_probs is None else Float32Bytes(log_probs),
        version_spans=_unpack_spans(spans),
        finish_reasons=tuple(FinishReason(row[2]) for row in samples),
        numerics_id=numerics_id,
        generation_seconds=seconds,
        action_mask=None if action_mask is None else UInt8Bytes(action_mask),
        routed_experts=experts,
    )


class ResultTables(HubStore):
    """Tables `submissions`, `sequences`, `columns` and `retained`."""

    _journal: JournalConnection

    def has_submission(self, submission: SubmissionId) -> bool:
        """See `HubStore`."""
        if submission.sequence > self._last_sequence(submission):
            return False
        row = self._journal.row(
            "SELECT 1 FROM submissions WHERE worker_name = ? AND worker_epoch = ? AND sequence = ?",
            (submission.worker_name, submission.worker_epoch, submission.sequence),
        )
        return row is not None

    def _last_sequence(self, submission: SubmissionId) -> int:
        """Highest sequence number stored of the same worker and epoch; what is above it is new."""
        key = (submission.worker_name, submission.worker_epoch)

        def read() -> int:
            row = self._journal.row(
                "SELECT max(sequence) FROM submissions WHERE worker_name = ? AND worker_epoch = ?", key
            )
            return -1 if row is None or row[0] is None else int(row[0])

        return self._journal.cache.get("last sequence", key, read)

    def add_submission(
        self,
        submission: SubmissionId,
        lease_id: str,
        backend: str,
        batch: TrajectoryBatch,
        sequences: Sequence[SequenceRow],
    ) -> None:
        """See `HubStore`."""
        last = max(self._last_sequence(submission), submission.sequence)
        submission_id = self._journal.execute(
            "INSERT INTO submissions VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                submission.worker_name,
                submission.worker_epoch,
                submission.sequence,
                lease_id,
                batch.group_id,
                backend,
                batch.numerics_id,
                batch.generation_seconds,
            ),
        )
        self._journal.cache.put("last sequence", (submission.worker_name, submission.worker_epoch), last)
        self._journal.execute_many(
            "INSERT INTO sequences VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    row.group_id,
                    row.sample_index,
                    submission_id,
                    position,
                    row.length,
                    int(row.finish_reason),
                    row.oldest_version,
                    row.newest_version,
                    row.oldest_step,
                    row.newest_step,
                )
                for position, row in enumerate(sequences)
            ],
        )
        experts = batch.routed_experts
        self._journal.execute(
            "INSERT INTO columns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                submission_id,
                batch.group_id,
                batch.token_ids,
                batch.log_probs,
                batch.action_mask,
                _pack_spans(batch.version_spans),
                experts and experts.expert_ids,
                experts and experts.layers,
                experts and experts.top_k,
            ),
        )

    def stored_indices(self, group_id: str) -> frozenset[int]:
        """See `HubStore`."""
        rows = self._journal.rows("SELECT sample_index FROM sequences WHERE group_id = ?", (group_id,))
        return frozenset(row[0] for row in rows)

    def batches(self, group_id: str) -> tuple[StoredBatch, ...]:
        """See `HubStore`."""
        found = []
        for submission_id, worker_name, backend, *columns in self._journal.rows(_BATCHES, (group_id,)):
            samples = self._journal.rows(
                "SELECT sample_index, length, finish_reason FROM sequences "
                "WHERE group_id = ? AND submission_id = ? ORDER BY position",
                (group_id, submission_id),
            )
            found.append(StoredBatch(_batch(group_id, tuple(columns), samples), worker_name, backend))
        return tuple(found)

    def sequences(self, group_id: str) -> tuple[SequenceRow, ...]:
        """See `HubStore`."""
        return tuple(
            SequenceRow(
                group_id=row[0],
                sample_index=row[1],
                length=row[2],
                finish_reason=FinishReason(row[3]),
                oldest_version=row[4],
                newest_version=row[5],
                oldest_step=row[6],
                newest_step=row[7],
            )
            for row in self._journal.rows(_SEQUENCES, (group_id,))
        )

    def prunable_groups(self, train_step: int, evaluation_step: int) -> tuple[str, ...]:
        """See `HubStore`."""
        train = self._journal.rows(_PRUNABLE, (int(Purpose.TRAIN), int(GroupState.COMMITTED), train_step))
        evaluation = self._journal.rows(
            _PRUNABLE, (int(Purpose.EVALUATION), int(GroupState.TAKEN), evaluation_step)
        )
        return tuple(row[0] for row in (*train, *evaluation))

    def retain(self, sequence: RetainedSequence) -> None:
        """See `HubStore`."""
        self._journal.execute(
            "INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                sequence.rank,
                sequence.group_id,
                sequence.sample_index,
                sequence.token_ids,
                sequence.log_probs,
                sequence.action_mask,
                sequence.trainer_log_probs,
            ),
        )

    def retained_ranks(self) -> tuple[int, ...]:
        """See `HubStore`."""
        return tuple(row[0] for row in self._journal.rows("SELECT rank FROM retained ORDER BY rank"))

    def trim_retained(self, size: int) -> None:
        """See `HubStore`."""
        evicted = self._journal.rows(
            "SELECT rank, group_id FROM retained ORDER BY rank LIMIT -1 OFFSET ?", (size,)
        )
        self._journal.execute_many("DELETE FROM retained WHERE rank = ?", [(rank,) for rank, _ in evicted])
        for group_id in sorted({group_id for _, group_id in evicted}):
            if not self._journal.row("SELECT 1 FROM columns WHERE group_id = ?", (group_id,)):
                self._journal.execute(_DROP_PROMPTS, (group_id,))

    def prune_group(self, group_id: str) -> None:
        """See `HubStore`."""
        self._journal.execute("DELETE FROM columns WHERE group_id = ?", (group_id,))
        self._journal.execute(_DROP_PROMPTS, (group_id,))
