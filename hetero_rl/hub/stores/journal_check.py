"""Everything that can be known about the soundness of a journal: SQLite's own structure, and the checksum of every row."""

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from hetero_rl.hub.stores.sums import Sums

__all__ = [
    "DamagedRow",
    "damaged_rows",
    "damaged_rows_of_commit",
    "damaged_rows_of_group",
    "structural_damage",
]

Row = tuple[Any, ...]

_MOST_FINDINGS = 20
_OF_SEQUENCES = " WHERE submission_id IN (SELECT submission_id FROM sequences WHERE group_id = ?)"


@dataclasses.dataclass(frozen=True, slots=True)
class DamagedRow:
    """A row whose checksum does not fit."""

    table: str
    key: str | int
    what: str
    """What it is, for people."""
    fatal: bool
    """Whether nothing can stand in for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """How the rows of a table are summed: key and values in the order of their sum, then blobs."""

    statement: str
    """Key, sum, values, blobs; rows of one sum that are parts of one another are read by `parts`."""
    what: Callable[[Row], str]
    blobs: int = 0
    """How many of the values, the last ones, are blobs."""
    fatal: bool = False
    of_group: bool = False
    """Whether the rows belong to groups, by a column `group_id`."""
    parts: str = ""
    """Statement for rows that the sum covers besides, by key."""

    @property
    def name(self) -> str:
        """The table's."""
        return self.statement.partition(" FROM ")[2].partition(" ")[0]


_TABLES = (
    _Table(
        "SELECT 1, row_sum, request, trainer_epoch, state, committed_step, pruned_step, run_id FROM run",
        lambda _: "the run",
        fatal=True,
    ),
    _Table(
        "SELECT group_id, row_sum, group_id, purpose, ordinal, group_size, min_weight_version, state, step, attempts, "
        "admitted_step, oldest_step, stored FROM groups",
        lambda row: f"group {row[0]!r}",
        of_group=True,
        fatal=True,
    ),
    _Table(
        "SELECT group_id, row_sum, group_id, sampling, prompt_token_ids, payload FROM prompts",
        lambda row: f"the prompt of group {row[0]!r}",
        of_group=True,
        blobs=2,
        fatal=True,
    ),
    _Table(
        "SELECT lease_id, row_sum, lease_id, group_id, worker_name, worker_epoch, attempt, min_weight_version, "
        "sample_indices FROM leases",
        lambda row: f"lease {row[0]!r}",
        fatal=True,
    ),
    _Table(
        "SELECT worker_name, row_sum, worker_name, worker_epoch, request, state, state_reason, last_probe, "
        "must_pass_probe, draining, former_boot_ids FROM workers",
        lambda row: f"worker {row[0]!r}",
        fatal=True,
    ),
    _Table(
        "SELECT version, row_sum, version, step, state_digest, abandoned, pruned FROM versions",
        lambda row: f"the row of weight version {row[0]}",
        fatal=True,
    ),
    _Table(
        "SELECT version, manifest_sum, version, manifest FROM versions",
        lambda row: f"the manifest of weight version {row[0]}",
    ),
    _Table(
        "SELECT version || '/' || base_version, row_sum, version, base_version, manifest FROM routes",
        lambda row: f"the manifest from weight version {row[3]} to {row[2]}",
    ),
    _Table(
        "SELECT submission_id, row_sum, worker_name, worker_epoch, sequence, lease_id, group_id, backend, numerics_id, "
        "generation_seconds FROM submissions",
        lambda row: f"completions of group {row[6]}",
        of_group=True,
        parts="SELECT group_id, sample_index, position, length, finish_reason, oldest_version, newest_version, "
        "oldest_step, newest_step FROM sequences WHERE group_id = ? AND submission_id = ? ORDER BY position",
    ),
    _Table(
        "SELECT submission_id, row_sum, submission_id, group_id, expert_layers, expert_top_k, token_ids, log_probs, "
        "action_mask, version_spans, expert_ids FROM columns",
        lambda row: f"completions of group {row[3]}",
        of_group=True,
        blobs=5,
    ),
    _Table(
        "SELECT rank, row_sum, rank, group_id, sample_index, token_ids, log_probs, action_mask, trainer_log_probs "
        "FROM retained",
        lambda row: f"kept tokens of sample {row[4]} of group {row[3]}",
        of_group=True,
        blobs=4,
    ),
    _Table(
        "SELECT commit_id, row_sum, step, trainer_epoch, committed_at, abandoned FROM steps",
        lambda row: f"the commit of step {row[2]}",
        fatal=True,
    ),
    _Table(
        "SELECT commit_id, log_probs_sum, log_probs FROM steps WHERE log_probs IS NOT NULL",
        lambda row: f"the trainer's log-probabilities of commit {row[0]}",
        blobs=1,
    ),
    _Table(
        "SELECT probe_id, row_sum, worker_name, worker_epoch, numerics_id, accepted, occurred_at, weight_version, "
        "mean_absolute_difference, max_absolute_difference, mean_difference, tokens, log_probs FROM probes",
        lambda row: f"a probe card of worker {row[2]}",
        blobs=1,
    ),
    _Table(
        "SELECT sync_id, row_sum, worker_name, worker_epoch, weight_version, occurred_at, sync FROM syncs",
        lambda row: f"how worker {row[2]} came to weight version {row[4]}",
    ),
    _Table(
        "SELECT score_id, row_sum, score_id, worker_name, state, submission, row FROM scores",
        lambda row: f"score {row[0]}",
    ),
)
_OUTCOMES = """
SELECT group_id, sample_index, reward, advantage, log_importance_ratio, coefficient, mean_absolute_gap, max_absolute_gap, lag,
    disposition, staleness_log_ratio, chip_log_ratio
FROM outcomes WHERE commit_id = ? ORDER BY position
"""


def structural_damage(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with pages, order, types, and the agreement of tables and indexes; empty when nothing."""
    rows = connection.execute(f"PRAGMA integrity_check({_MOST_FINDINGS})").fetchall()
    return [message for (message,) in rows if message != "ok"]


def damaged_rows(connection: sqlite3.Connection, sums: Sums) -> Iterator[DamagedRow]:
    """Every row whose checksum does not fit."""
    for table in _TABLES:
        yield from _damaged_of(connection, sums, table)
    for (commit_id,) in connection.execute("SELECT commit_id FROM steps"):
        yield from _damaged_outcomes(connection, sums, commit_id)


def damaged_rows_of_commit(
    connection: sqlite3.Connection, sums: Sums, commit_id: int
) -> Iterator[DamagedRow]:
    """Outcomes and log-probabilities of a commit whose checksums do not fit."""
    for table in _TABLES:
        if table.name == "steps":
            where = " AND commit_id = ?" if " WHERE " in table.statement else " WHERE commit_id = ?"
            yield from _damaged_of(connection, sums, table, where, (commit_id,))
    yield from _damaged_outcomes(connection, sums, commit_id)


def _damaged_outcomes(connection: sqlite3.Connection, sums: Sums, commit_id: int) -> Iterator[DamagedRow]:
    for step, found in connection.execute(
        "SELECT step, outcomes_sum FROM steps WHERE commit_id = ?", (commit_id,)
    ):
        if not sums.fits(found, connection.execute(_OUTCOMES, (commit_id,)).fetchall()):
            yield DamagedRow("outcomes", commit_id, f"outcomes of step {step}", fatal=False)


def damaged_rows_of_group(connection: sqlite3.Connection, sums: Sums, group_id: str) -> Iterator[DamagedRow]:
    """Rows of a group, its prompt and its completions whose checksum does not fit."""
    for table in _TABLES:
        if table.of_group:
            # By the way that leads to the rows: a damaged index may lead elsewhere. Submissions have none by group anyway.
            where = _OF_SEQUENCES if table.name in {"submissions", "columns"} else " WHERE group_id = ?"
            yield from _damaged_of(connection, sums, table, where, (group_id,))


def _damaged_of(
    connection: sqlite3.Connection, sums: Sums, table: _Table, where: str = "", values: Row = ()
) -> Iterator[DamagedRow]:
    for row in connection.execute(table.statement + where, values):
        key, found, *summed = row
        blobs = summed[len(summed) - table.blobs :]
        covered: list[Any] = summed[: len(summed) - table.blobs]
        if table.parts:
            parts = connection.execute(table.parts, (row[6], key)).fetchall()
            covered = [tuple(covered), parts]
        if not sums.fits(found, covered, *blobs):
            yield DamagedRow(table.name, key, table.what(row), table.fatal)
