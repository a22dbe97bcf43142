"""Workers, probes, events and counters."""

import dataclasses

from hetero_rl.hub.stores.records import (
    ProbeRow,
    ScoreRow,
    ScoreState,
    SubmissionId,
    SyncRow,
    WorkerRow,
)
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import (
    ProbeResult,
    WeightSync,
    WorkerState,
)


class TestFleet:
    PROBE = ProbeResult(
        weight_version=2,
        mean_absolute_difference=0.01,
        max_absolute_difference=0.02,
        mean_difference=-0.01,
        tokens=1,
        log_probs=float32_column([-1.0]),
    )

    def test_a_worker_comes_back_without_the_probes_numbers(self, store, rows):
        worker = WorkerRow(
            request=rows.join,
            worker_epoch=2,
            state=WorkerState.QUARANTINED,
            state_reason="why",
            completions=3,
            last_probe=self.PROBE,
            must_pass_probe=True,
            draining=True,
            former_boot_ids=("a", "b"),
        )
        store.put_worker(worker)
        short = dataclasses.replace(worker, last_probe=dataclasses.replace(self.PROBE, log_probs=None))
        assert store.worker("w1") == short
        assert store.workers() == (short,)
        assert store.worker("w2") is None

    def test_completions_add_up(self, store, rows):
        store.put_worker(WorkerRow(request=rows.join, worker_epoch=1, state=WorkerState.ACTIVE))
        store.add_completions("w1", 3)
        store.add_completions("w1", 4)
        assert store.worker("w1").completions == 7

    def test_probes_keep_their_numbers(self, store):
        probe = ProbeRow(
            worker_name="w1",
            worker_epoch=1,
            numerics_id="n",
            result=self.PROBE,
            accepted=True,
            occurred_at=1.5,
        )
        store.add_probe(probe)
        assert store.probes("w1") == (probe,)
        assert store.probes("w2") == ()

    def test_a_sync_is_kept_once_for_each_incarnation(self, store):
        sync = WeightSync(
            weight_version=2,
            from_version=1,
            manifests=1,
            fetched_bytes=7,
            fetch_seconds=0.5,
            decode_seconds=0.25,
            verify_seconds=0.125,
            pause_seconds=0.0625,
            total_seconds=1.0,
            fallbacks=1,
        )
        row = SyncRow(worker_name="w1", worker_epoch=1, sync=sync, occurred_at=1.5)
        other = dataclasses.replace(row, worker_epoch=2)
        assert store.add_sync(row)
        assert not store.add_sync(dataclasses.replace(row, occurred_at=2.5))
        assert store.add_sync(other)
        assert store.syncs() == (row, other)

    def test_events_are_numbered_from_one(self, store):
        for number in (1, 2, 3):
            store.add_event(float(number), "kind", "w1", f"message {number}")
        assert [event.sequence for event in store.events(0, 2)] == [1, 2]
        (last,) = store.events(2, 9)
        assert (last.sequence, last.message, last.occurred_at) == (3, "message 3", 3.0)

    def test_counters_add_up(self, store):
        store.count("a")
        store.count("a", 4)
        assert store.counters() == {"a": 5}


class TestScores:
    ROW = ScoreRow(
        score_id="s000001",
        worker_name="w1",
        weight_version=3,
        lengths=(2, 3),
        token_ids=int32_column([1, 2, 3, 4, 5]),
    )

    def test_a_score_comes_back_and_waits_for_its_worker(self, store):
        store.put_score(self.ROW)
        assert store.score("s000001") == self.ROW
        assert store.score("s000002") is None
        assert store.queued_scores("w1") == (self.ROW,)
        assert store.queued_scores("w2") == ()
        assert store.count_scores() == 1

    def test_a_score_that_is_done_is_known_by_its_submission(self, store):
        key = SubmissionId("w1", 1, 9)
        done = dataclasses.replace(
            self.ROW,
            state=ScoreState.DONE,
            submission=key,
            log_probs=bytes(float32_column([-1.0, -2.0, -3.0])),
        )
        store.put_score(self.ROW)
        store.put_score(done)
        assert store.score("s000001") == done
        assert store.queued_scores("w1") == ()
        assert store.has_score_submission(key)
        assert not store.has_score_submission(SubmissionId("w1", 1, 10))
