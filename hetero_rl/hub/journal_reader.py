"""Read-only access to the journal of a live or closed run, for samples, audits and proofs.

    hub (one writer) ──► journal.sqlite + WAL ◄── readers (any number): each sees what was committed when its query began

A reader never blocks the hub and never creates or changes a journal.

Example:
    >>> trained_twice(Path("runs/quickstart/hub/journal.sqlite"))  # doctest: +SKIP
    []
"""

import dataclasses
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from hetero_rl.errors import DamagedJournalError, StorageError
from hetero_rl.hub.stores.codec import decode
from hetero_rl.hub.stores.connection import SQLITE_ERRORS, WITHOUT_SUMS, check_schema_version, storage_error
from hetero_rl.hub.stores.records import RunRecord, RunState, SyncRow, VersionRow
from hetero_rl.hub.stores.schema import SUMS_SINCE
from hetero_rl.hub.stores.soundness import Soundness
from hetero_rl.hub.stores.sqlite_fleet import SELECT_SYNCS, sync_row
from hetero_rl.hub.stores.sums import Sums
from hetero_rl.wire.messages import (
    Disposition,
    Event,
    FinishReason,
    JoinRequest,
    Purpose,
    RunRequest,
    SequenceOutcome,
    WeightManifest,
)

__all__ = ["JournalReader", "Sample", "TrainedTwice", "trained_twice"]

_OUTCOME_FIELDS = tuple(field.name for field in dataclasses.fields(SequenceOutcome))

_TRAINED_TWICE = """
SELECT outcomes.group_id, outcomes.sample_index, group_concat(steps.step) FROM outcomes JOIN steps USING (commit_id)
WHERE steps.abandoned = 0 AND outcomes.disposition = ?
GROUP BY outcomes.group_id, outcomes.sample_index HAVING count(*) > 1
ORDER BY outcomes.group_id, outcomes.sample_index
"""

# Token columns are either whole batches (`columns`) or single sequences of the reservoir (`retained`).
_SAMPLES = """
SELECT groups.purpose, groups.ordinal, groups.step, sequences.group_id, sequences.sample_index,
    sequences.finish_reason, sequences.oldest_version, sequences.newest_version, submissions.worker_name,
    submissions.backend, submissions.numerics_id, prompts.prompt_token_ids, prompts.payload,
    coalesce(retained.token_ids, substr(columns.token_ids, 4 * start + 1, 4 * length)) AS token_ids,
    coalesce(retained.log_probs, substr(columns.log_probs, 4 * start + 1, 4 * length)) AS log_probs,
    retained.trainer_log_probs
FROM (SELECT *, sum(length) OVER (PARTITION BY submission_id ORDER BY position) - length AS start FROM sequences
    WHERE group_id IN (SELECT group_id FROM groups WHERE purpose = ?1 AND (?2 IS NULL OR step = ?2))
        AND group_id IN (SELECT group_id FROM columns UNION SELECT group_id FROM retained)) AS sequences
JOIN groups ON groups.group_id = sequences.group_id
JOIN prompts ON prompts.group_id = sequences.group_id
JOIN submissions ON submissions.submission_id = sequences.submission_id
LEFT JOIN columns ON columns.submission_id = sequences.submission_id
LEFT JOIN retained ON retained.group_id = sequences.group_id AND retained.sample_index = sequences.sample_index
WHERE columns.submission_id IS NOT NULL OR retained.rank IS NOT NULL
ORDER BY groups.ordinal DESC, sequences.group_id, sequences.sample_index LIMIT ?3
"""
_SAMPLE_COLUMNS = (
    "purpose",
    "ordinal",
    "step",
    "group_id",
    "sample_index",
    "finish_reason",
    "oldest_version",
    "newest_version",
    "worker_name",
    "backend",
    "numerics_id",
    "prompt_token_ids",
    "payload",
    "token_ids",
    "log_probs",
    "trainer_log_probs",
)

_TRAINED_SEQUENCES = """
SELECT steps.step, submissions.backend, submissions.numerics_id, submissions.worker_name, sequences.length, outcomes.lag,
    outcomes.reward, outcomes.advantage, outcomes.log_importance_ratio, outcomes.coefficient, outcomes.mean_absolute_gap,
    outcomes.max_absolute_gap, outcomes.disposition, outcomes.staleness_log_ratio, outcomes.chip_log_ratio
FROM steps JOIN outcomes USING (commit_id) JOIN sequences USING (group_id, sample_index) JOIN submissions USING (submission_id)
WHERE steps.abandoned = 0 ORDER BY steps.step, outcomes.position
"""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainedTwice:
    """A trajectory that more than one step of the run's history trained on."""

    group_id: str
    sample_index: int
    steps: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion whose tokens are still there. L tokens."""

    purpose: Purpose
    ordinal: int
    step: int
    """Training: the step it belongs to, 0 before it is taken."""
    group_id: str
    sample_index: int
    finish_reason: FinishReason
    oldest_version: int
    newest_version: int
    worker_name: str
    backend: str
    numerics_id: str
    prompt_token_ids: bytes
    """int32."""
    payload: bytes
    """The trainer's own data about the prompt."""
    token_ids: bytes
    """int32, L elements."""
    log_probs: bytes | None
    """float32, L elements, as the worker reported them."""
    trainer_log_probs: bytes | None
    """float32, L elements, under the trainer's policy at the step; None when the run does not keep them."""
    outcome: SequenceOutcome | None
    """What became of it; None before its step is committed, and for evaluation."""


class JournalReader:
    """A read-only connection to a journal.

    Args:
        path: RUN/hub/journal.sqlite.

    Raises:
        StorageError: There is no journal, it is damaged, or a newer release wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise StorageError(f"{path} does not exist: name the journal of a run, RUN/hub/journal.sqlite")
        try:
            self._connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        except SQLITE_ERRORS as error:
            raise storage_error(error, path) from error
        check_schema_version(version, path)
        if version == 0:
            raise StorageError(f"{path} is not a journal of hetero-rl: it has no schema version")
        self._has_sums = version >= SUMS_SINCE
        old = self._rows("SELECT 1 FROM meta WHERE key = ?", WITHOUT_SUMS)
        self._sums = Sums(path, all_rows=self._has_sums and not old)
        self._soundness = Soundness(self._connection, path, self._sums if self._has_sums else None)

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def damage(self) -> tuple[str, ...]:
        """Everything in the journal that is not as it was written; reads all of it."""
        return self._soundness.damage()

    def require_sound(self) -> None:
        """Raises DamagedJournalError, naming what is damaged, unless all of the journal is as it was written."""
        found = self.damage()
        if found:
            raise DamagedJournalError(
                f"{self._path} is damaged: {'; '.join(found[:5])}{' ...' if len(found) > 5 else ''}; "
                "see docs/operations.md, section Damaged journals"
            )

    def run(self) -> RunRecord | None:
        """The run; None before a trainer opened it."""
        found = "row_sum" if self._has_sums else "NULL"
        rows = self._rows(
            f"SELECT request, trainer_epoch, state, committed_step, pruned_step, run_id, {found} FROM run"  # ruff: ignore[hardcoded-sql-expression] a name of ours
        )
        if not rows:
            return None
        request, epoch, state, committed, pruned, _, run_sum = rows[0]
        self._sums.require("the run", run_sum, rows[0][:-1])
        return RunRecord(
            request=decode(RunRequest, request),
            trainer_epoch=epoch,
            state=RunState(state),
            committed_step=committed,
            pruned_step=pruned,
        )

    def trained_twice(self) -> list[TrainedTwice]:
        """Trajectories that two steps of the history trained on; steps abandoned by a resume do not count."""
        return [
            TrainedTwice(group_id, sample_index, tuple(sorted(int(step) for step in steps.split(","))))
            for group_id, sample_index, steps in self._rows(_TRAINED_TWICE, int(Disposition.TRAINED))
        ]

    def versions(self) -> Iterator[tuple[VersionRow, WeightManifest]]:
        """Every weight version that was published, oldest first, pruned and abandoned ones too."""
        found = "manifest_sum" if self._has_sums else "NULL"
        rows = self._rows(
            f"SELECT version, step, state_digest, abandoned, pruned, manifest, {found} FROM versions ORDER BY version"  # ruff: ignore[hardcoded-sql-expression] a name of ours
        )
        for version, step, state_digest, abandoned, pruned, manifest, manifest_sum in rows:
            self._sums.require(f"the manifest of weight version {version}", manifest_sum, (version, manifest))
            row = VersionRow(version, step, state_digest, abandoned=bool(abandoned), pruned=bool(pruned))
            yield row, decode(WeightManifest, manifest)

    def routes(self) -> Iterator[tuple[WeightManifest, bool]]:
        """Ways to versions besides each one's own manifest, by version, and whether their blobs are kept."""
        if not self._has_table("routes"):
            return
        found = "row_sum" if self._has_sums else "NULL"
        rows = self._rows(
            f"SELECT manifest, pruned, version, base_version, {found} FROM routes ORDER BY version, base_version"  # ruff: ignore[hardcoded-sql-expression] a name of ours
        )
        for manifest, pruned, version, base, route_sum in rows:
            what = f"the manifest from weight version {base} to {version}"
            self._sums.require(what, route_sum, (version, base, manifest))
            yield decode(WeightManifest, manifest), not pruned

    def syncs(self) -> tuple[SyncRow, ...]:
        """How workers came to weight versions, in the order in which the hub heard of it; empty in an older journal."""
        if not self._has_table("syncs"):
            return ()
        statement = SELECT_SYNCS if self._has_sums else SELECT_SYNCS.replace("row_sum", "NULL", 1)
        return tuple(map(sync_row, self._rows(statement)))

    def trained_sequences(self) -> Iterator[tuple[Any, ...]]:
        """Scalars of every sequence of a committed step; steps abandoned by a resume do not count.

        Step, backend, numerics id, worker, length, lag, reward, advantage, log W, coefficient, mean and largest gap,
        disposition, staleness part, chip part.
        """
        return self._stream(_TRAINED_SEQUENCES)

    def probes(self) -> tuple[tuple[Any, ...], ...]:
        """Worker, numerics id, version, mean and largest |difference|, mean difference, tokens, accepted, time of each probe."""
        return tuple(
            self._rows(
                "SELECT worker_name, numerics_id, weight_version, mean_absolute_difference, max_absolute_difference, "
                "mean_difference, tokens, accepted, occurred_at FROM probes ORDER BY probe_id"
            )
        )

    def workers(self) -> tuple[JoinRequest, ...]:
        """What every worker said of itself when it joined last."""
        rows = self._rows("SELECT request FROM workers ORDER BY worker_name")
        return tuple(decode(JoinRequest, request) for (request,) in rows)

    def events(self) -> tuple[Event, ...]:
        """What happened, oldest first."""
        rows = self._rows(
            "SELECT sequence, occurred_at, kind, worker_name, message FROM events ORDER BY sequence"
        )
        return tuple(
            Event(sequence=sequence, occurred_at=when, kind=kind, worker_name=worker, message=message)
            for sequence, when, kind, worker, message in rows
        )

    def counters(self) -> dict[str, int]:
        """Counters by name, those that are not 0."""
        return dict(self._rows("SELECT name, value FROM counters WHERE value != 0 ORDER BY name"))

    def samples(
        self, *, purpose: Purpose = Purpose.TRAIN, step: int | None = None, limit: int = 20
    ) -> Iterator[Sample]:
        """Completions whose tokens are still there, newest prompts first; without those that were damaged.

        Args:
            purpose: Training or evaluation.
            step: Only those of this step.
            limit: At most this many.
        """
        self._soundness.require_structure()
        trainer_log_probs: dict[int, dict[tuple[str, int], bytes]] = {}
        for values in self._rows(_SAMPLES, int(purpose), step, limit):
            row: dict[str, Any] = dict(zip(_SAMPLE_COLUMNS, values, strict=True))
            if not self._soundness.of_group(row["group_id"]):
                continue
            if row["step"] not in trainer_log_probs:
                trainer_log_probs[row["step"]] = self._trainer_log_probs(row["step"])
            key = (row["group_id"], row["sample_index"])
            row["purpose"] = Purpose(row["purpose"])
            row["finish_reason"] = FinishReason(row["finish_reason"])
            row["trainer_log_probs"] = trainer_log_probs[row["step"]].get(key, row["trainer_log_probs"])
            yield Sample(**row, outcome=self._outcome_of(*key))

    def outcomes(self, step: int) -> tuple[SequenceOutcome, ...]:
        """What became of each sequence of a committed step, in the trainer's order; empty when it is not committed."""
        rows = self._rows(
            "SELECT outcomes.* FROM outcomes JOIN steps USING (commit_id) WHERE step = ? AND abandoned = 0 "
            "ORDER BY position",
            step,
        )
        if rows and not self._soundness.of_commit(rows[0][0]):
            raise DamagedJournalError(f"{self._path} is damaged: outcomes of step {step}")
        return tuple(_outcome(row[2:]) for row in rows)

    def _outcome_of(self, group_id: str, sample_index: int) -> SequenceOutcome | None:
        rows = self._rows(
            "SELECT outcomes.* FROM outcomes JOIN steps USING (commit_id) "
            "WHERE group_id = ? AND sample_index = ? AND abandoned = 0",
            group_id,
            sample_index,
        )
        return _outcome(rows[0][2:]) if rows and self._soundness.of_commit(rows[0][0]) else None

    def _trainer_log_probs(self, step: int) -> dict[tuple[str, int], bytes]:
        """The trainer's log-probabilities of a step by sequence; empty when they were not kept or are pruned."""
        rows = self._rows(
            "SELECT commit_id, log_probs FROM steps WHERE step = ? AND abandoned = 0 AND log_probs IS NOT NULL",
            step,
        )
        found: dict[tuple[str, int], bytes] = {}
        for commit_id, log_probs in rows:
            lengths = self._rows(
                "SELECT group_id, sample_index, length FROM outcomes JOIN sequences USING (group_id, sample_index) "
                "WHERE commit_id = ? ORDER BY outcomes.position",
                commit_id,
            )
            groups = {group_id for group_id, _, _ in lengths}
            # One length that is wrong, and the values of all sequences after it are others'.
            if not (
                self._soundness.of_commit(commit_id) and all(map(self._soundness.of_group, sorted(groups)))
            ):
                continue
            ends = itertools.accumulate(4 * length for _, _, length in lengths)
            for (group_id, sample_index, length), end in zip(lengths, ends, strict=True):
                found[group_id, sample_index] = log_probs[end - 4 * length : end]
        return found

    def _has_table(self, name: str) -> bool:
        """False in a journal that no hub of this release has opened."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def _stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Rows one after another: a long run does not fit into a list."""
        try:
            yield from self._connection.execute(statement)
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except SQLITE_ERRORS as error:
            raise storage_error(error, self._path) from error


def _outcome(row: tuple[Any, ...]) -> SequenceOutcome:
    values: dict[str, Any] = dict(zip(_OUTCOME_FIELDS, row, strict=True))
    values["disposition"] = Disposition(values["disposition"])
    return SequenceOutcome(**values)


def trained_twice(path: Path) -> list[TrainedTwice]:
    """Proof over a journal that no trajectory changed the weights twice: the list is empty."""
    with JournalReader(path) as reader:
        return reader.trained_twice()
