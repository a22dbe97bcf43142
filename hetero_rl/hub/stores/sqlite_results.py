"""Statements on submitted completions, and on the reservoir of those whose tokens are kept."""

import array
import itertools
import operator
from collections.abc import Sequence
from itertools import starmap
from typing import Any

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import GroupState, RetainedSequence, SequenceRow, StoredBatch, SubmissionId
from hetero_rl.hub.stores.sums import real, row_sum
from hetero_rl.wire.columns import Float32Bytes, Int32Bytes, UInt8Bytes
from hetero_rl.wire.messages import FinishReason, Purpose, RoutedExperts, TrajectoryBatch, VersionSpan

__all__ = ["ResultTables"]

_BATCHES = """
SELECT submission_id, worker_name, worker_epoch, sequence, lease_id, submissions.group_id, backend, numerics_id,
    generation_seconds, submissions.row_sum, token_ids, log_probs, action_mask, version_spans, expert_ids, expert_layers,
    expert_top_k, columns.row_sum
FROM columns JOIN submissions USING (submission_id) WHERE columns.group_id = ? ORDER BY submission_id
"""
_SUBMISSIONS = """
SELECT submission_id, worker_name, worker_epoch, sequence, lease_id, group_id, backend, numerics_id, generation_seconds
FROM submissions WHERE group_id = ?
"""
_SAMPLES = """
SELECT group_id, sample_index, position, length, finish_reason, oldest_version, newest_version, oldest_step, newest_step
FROM sequences WHERE group_id = ? AND submission_id = ? ORDER BY position
"""
_INSERT_SUBMISSION = "INSERT INTO submissions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_COLUMNS = "INSERT INTO columns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_SEQUENCE = """
INSERT INTO sequences (submission_id, group_id, sample_index, position, length, finish_reason, oldest_version,
    newest_version, oldest_step, newest_step)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SEQUENCES = """
SELECT submission_id, worker_name, worker_epoch, sequence, lease_id, submissions.group_id, backend, numerics_id,
    generation_seconds, row_sum, sequences.group_id, sample_index, position, length, finish_reason, oldest_version,
    newest_version, oldest_step, newest_step
FROM sequences JOIN submissions USING (submission_id) WHERE sequences.group_id = ? ORDER BY submission_id, position
"""
_PRUNABLE = """
SELECT DISTINCT columns.group_id FROM columns JOIN groups USING (group_id)
WHERE purpose = ? AND state = ? AND step <= ? ORDER BY columns.group_id
"""
_DROP_PROMPTS = """
UPDATE prompts SET prompt_token_ids = x'', payload = x'', row_sum = row_sum(group_id, sampling, x'', x'') WHERE group_id = ?
    AND NOT EXISTS (SELECT 1 FROM retained WHERE retained.group_id = prompts.group_id)
"""


_HEADER = 8
"""Values of a row of `submissions` in `_BATCHES` and `_SEQUENCES`, between its id and its sum."""
_BY_SUBMISSION = operator.itemgetter(slice(_HEADER + 2))


def _pack_spans(spans: Sequence[VersionSpan]) -> bytes:
    return array.array("q", itertools.chain.from_iterable(spans)).tobytes()


def _unpack_spans(packed: bytes) -> tuple[VersionSpan, ...]:
    numbers = memoryview(packed).cast("q").tolist()
    return tuple(VersionSpan(*numbers[start : start + 4]) for start in range(0, len(numbers), 4))


def _sample_values(position: int, row: SequenceRow) -> tuple[object, ...]:
    """A row of `sequences` in the order of `_SAMPLES`."""
    group_id, sample_index, length, finish_reason, *versions_and_steps = row
    return (group_id, sample_index, position, length, finish_reason.value, *versions_and_steps)


def _sequence_row(values: Row) -> SequenceRow:
    """The row that `_sample_values` took apart."""
    group_id, sample_index, _, length, finish_reason, *versions_and_steps = values
    oldest_version, newest_version, oldest_step, newest_step = versions_and_steps
    return SequenceRow(
        group_id=group_id,
        sample_index=sample_index,
        length=length,
        finish_reason=FinishReason(finish_reason),
        oldest_version=oldest_version,
        newest_version=newest_version,
        oldest_step=oldest_step,
        newest_step=newest_step,
    )


def _covered(submission_id: int, group_id: str, columns: Row) -> tuple[Any, ...]:
    """What the sum of a row of `columns` covers: its numbers, and each blob."""
    *blobs, layers, top_k = columns
    return ((submission_id, group_id, layers, top_k), *blobs)


def _stored_batch(header: Row, columns: Row, samples: list[Row]) -> StoredBatch:
    worker_name, _, _, _, group_id, backend, numerics_id, seconds = header
    token_ids, log_probs, action_mask, spans, expert_ids, layers, top_k = columns
    experts = None
    if expert_ids is not None:
        experts = RoutedExperts(expert_ids=Int32Bytes(expert_ids), layers=layers, top_k=top_k)
    batch = TrajectoryBatch(
        group_id=group_id,
        sample_indices=tuple(row[1] for row in samples),
        lengths=tuple(row[3] for row in samples),
        token_ids=Int32Bytes(token_ids),
        log_probs=None if log_probs is None else Float32Bytes(log_probs),
        version_spans=_unpack_spans(spans),
        finish_reasons=tuple(FinishReason(row[4]) for row in samples),
        numerics_id=numerics_id,
        generation_seconds=seconds,
        action_mask=None if action_mask is None else UInt8Bytes(action_mask),
        routed_experts=experts,
    )
    return StoredBatch(batch, worker_name, backend)


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
        header = (
            submission.worker_name,
            submission.worker_epoch,
            submission.sequence,
            lease_id,
            batch.group_id,
            backend,
            batch.numerics_id,
            real(batch.generation_seconds),
        )
        samples = list(starmap(_sample_values, enumerate(sequences)))
        submission_id = self._next_submission_id()
        self._journal.put_off(_INSERT_SUBMISSION, (submission_id, *header, row_sum((header, samples))))
        self._journal.cache.put("last sequence", (submission.worker_name, submission.worker_epoch), last)
        self._journal.put_off(_INSERT_SEQUENCE, *((submission_id, *values) for values in samples))
        experts = batch.routed_experts
        columns = (
            batch.token_ids,
            batch.log_probs,
            batch.action_mask,
            _pack_spans(batch.version_spans),
            experts and experts.expert_ids,
            experts and experts.layers,
            experts and experts.top_k,
        )
        self._journal.put_off(
            _INSERT_COLUMNS,
            (
                submission_id,
                batch.group_id,
                *columns,
                row_sum(*_covered(submission_id, batch.group_id, columns)),
            ),
        )

    def _next_submission_id(self) -> int:
        """What SQLite would give a row, without asking it: the row can then be put off."""

        def read() -> int:
            row = self._journal.row("SELECT max(submission_id) FROM submissions")
            return 0 if row is None or row[0] is None else int(row[0])

        following = self._journal.cache.get("last submission id", None, read) + 1
        self._journal.cache.put("last submission id", None, following)
        return following

    def drop_completions(self, group_id: str) -> None:
        """See `HubStore`."""
        # Submissions stay: their sums are those of no sequences from now on.
        for submission_id, *header in self._journal.rows(_SUBMISSIONS, (group_id,)):
            found = row_sum((tuple(header), []))
            self._journal.execute(
                "UPDATE submissions SET row_sum = ? WHERE submission_id = ?", (found, submission_id)
            )
        self._journal.execute("DELETE FROM sequences WHERE group_id = ?", (group_id,))
        self._journal.execute("DELETE FROM columns WHERE group_id = ?", (group_id,))

    def stored_indices(self, group_id: str) -> frozenset[int]:
        """See `HubStore`."""
        rows = self._journal.rows("SELECT sample_index FROM sequences WHERE group_id = ?", (group_id,))
        return frozenset(row[0] for row in rows)

    def batches(self, group_id: str) -> tuple[StoredBatch, ...]:
        """See `HubStore`."""
        found = []
        for submission_id, *row in self._journal.rows(_BATCHES, (group_id,)):
            header, columns, columns_sum = tuple(row[:_HEADER]), tuple(row[_HEADER + 1 : -1]), row[-1]
            samples = self._journal.rows(_SAMPLES, (group_id, submission_id))
            fits = self._journal.sums.fits
            if fits(row[_HEADER], (header, samples)) and fits(
                columns_sum, *_covered(submission_id, group_id, columns)
            ):
                found.append(_stored_batch(header, columns, samples))
            else:
                self._journal.note_damage(f"completions of group {group_id}")
        return tuple(found)

    def sequences(self, group_id: str) -> tuple[SequenceRow, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(_SEQUENCES, (group_id,))
        found: list[SequenceRow] = []
        for (_, *header), part in itertools.groupby(rows, key=_BY_SUBMISSION):
            samples = [row[_HEADER + 2 :] for row in part]
            if self._journal.sums.fits(header[-1], (tuple(header[:-1]), samples)):
                found += map(_sequence_row, samples)
            else:
                self._journal.note_damage(f"completions of group {group_id}")
        return tuple(sorted(found, key=lambda row: row.sample_index))

    def prunable_groups(self, train_step: int, evaluation_step: int) -> tuple[str, ...]:
        """See `HubStore`."""
        train = self._journal.rows(_PRUNABLE, (int(Purpose.TRAIN), int(GroupState.COMMITTED), train_step))
        evaluation = self._journal.rows(
            _PRUNABLE, (int(Purpose.EVALUATION), int(GroupState.TAKEN), evaluation_step)
        )
        return tuple(row[0] for row in (*train, *evaluation))

    def retain(self, sequence: RetainedSequence) -> None:
        """See `HubStore`."""
        place = (sequence.rank, sequence.group_id, sequence.sample_index)
        blobs = (sequence.token_ids, sequence.log_probs, sequence.action_mask, sequence.trainer_log_probs)
        self._journal.execute(
            "INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, *blobs, row_sum(place, *blobs)),
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
