"""Statements on scores that somebody asked for."""

from collections.abc import Iterable, Iterator

from hetero_rl.hub.stores.base import HubStore
from hetero_rl.hub.stores.codec import decode, encode
from hetero_rl.hub.stores.connection import JournalConnection, Row
from hetero_rl.hub.stores.records import ScoreRow, ScoreState, SubmissionId
from hetero_rl.hub.stores.sums import row_sum

__all__ = ["ScoreTables"]


class ScoreTables(HubStore):
    """Table `scores`."""

    _journal: JournalConnection

    def put_score(self, row: ScoreRow) -> None:
        """See `HubStore`."""
        self._journal.cache.forget("scores")
        submission = None if row.submission is None else _key(row.submission)
        values = (row.score_id, row.worker_name, int(row.state), submission, encode(row))
        self._journal.execute(
            "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)", (*values, row_sum(values))
        )

    def score(self, score_id: str) -> ScoreRow | None:
        """See `HubStore`."""
        rows = self._journal.rows("SELECT * FROM scores WHERE score_id = ?", (score_id,))
        return next(self._whole(rows), None)

    def queued_scores(self, worker_name: str) -> tuple[ScoreRow, ...]:
        """See `HubStore`."""
        rows = self._journal.rows(
            "SELECT * FROM scores WHERE worker_name = ? AND state = ? ORDER BY score_id",
            (worker_name, int(ScoreState.QUEUED)),
        )
        return tuple(self._whole(rows))

    def _whole(self, rows: Iterable[Row]) -> Iterator[ScoreRow]:
        for *values, found in rows:
            if self._journal.sums.fits(found, values):
                yield decode(ScoreRow, values[-1])
            else:
                self._journal.note_damage(f"score {values[0]}")

    def count_scores(self) -> int:
        """See `HubStore`."""
        return self._journal.cache.get(
            "scores", None, lambda: int(self._journal.rows("SELECT count(*) FROM scores")[0][0])
        )

    def has_score_submission(self, key: SubmissionId) -> bool:
        """See `HubStore`."""
        if not self.count_scores():
            return False  # most runs ask for none
        return self._journal.row("SELECT 1 FROM scores WHERE submission = ?", (_key(key),)) is not None


def _key(submission: SubmissionId) -> str:
    return f"{submission.worker_name}/{submission.worker_epoch}/{submission.sequence}"
