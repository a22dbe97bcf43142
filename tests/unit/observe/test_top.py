import dataclasses

import pytest

from hetero_rl.observe.backends import summarize_backends
from hetero_rl.observe.fleet import fetch_fleet, fleet_record
from hetero_rl.observe.scaling import ScaleHint, scale_hint
from hetero_rl.observe.tables import fleet_view
from hetero_rl.observe.top import FleetHistory, top_view
from hetero_rl.wire.messages import ProbeResult, QueueCounts, WorkerState


def probe(mean, largest):
    return ProbeResult(
        weight_version=7,
        mean_absolute_difference=mean,
        max_absolute_difference=largest,
        mean_difference=0.0,
        tokens=8,
    )


@pytest.fixture
def worker(fleet):
    return fleet.workers[0]


@pytest.fixture
def look(fleet):
    """Adds what the fleet answers at a time to a history."""

    def _look(history, now):
        history.add(now, fetch_fleet(fleet, include_gone=True))

    return _look


def step(fleet, number):
    fleet.status = dataclasses.replace(fleet.status, step=number)


class TestHistory:
    def test_speed_is_what_was_made_within_the_window(self, fleet, look):
        history = FleetHistory()
        look(history, 100.0)
        fleet.change_worker(generated_tokens=12_600)
        look(history, 104.0)

        assert history.rates == {"cpu-0": 150.0}
        assert history.token_curve == [150.0]

    def test_a_worker_that_started_again_has_no_speed_yet(self, fleet, look):
        history = FleetHistory()
        look(history, 100.0)
        fleet.change_worker(worker_epoch=2, generated_tokens=12_600)
        look(history, 104.0)

        assert history.rates == {}

    def test_the_end_is_expected_at_the_pace_of_the_window(self, fleet, look):
        history = FleetHistory()
        look(history, 0.0)
        assert history.seconds_left is None
        step(fleet, 9)
        look(history, 30.0)  # 2 steps in 30 s, 11 are left

        assert history.seconds_left == 165.0

    def test_what_is_older_than_a_minute_is_forgotten(self, fleet, look):
        history = FleetHistory()
        for now in (0.0, 50.0, 70.0, 100.0):
            fleet.change_worker(generated_tokens=int(12_000 + 10 * now))
            look(history, now)

        assert len(history.token_curve) == 2
        assert history.rates == {"cpu-0": 10.0}

    def test_waits_are_shares_of_the_answers(self, fleet, look):
        history = FleetHistory()
        for leases in (2, 2, 2, 0):
            fleet.change_worker(leases=leases)
            look(history, 1.0)

        assert history.waits == [(ScaleHint.DATA, 0.75), (ScaleHint.WEIGHTS, 0.25)]


class TestHint:
    def hint(self, fleet, workers=None, **changes):
        status = dataclasses.replace(fleet.status, **changes)
        return scale_hint(status, fleet.workers if workers is None else workers)

    def test_idle_workers_before_a_full_queue_wait_for_weights(self, fleet, worker):
        idle = dataclasses.replace(worker, worker_name="cpu-1", leases=0)
        assert self.hint(fleet, (worker, idle)) is ScaleHint.WEIGHTS

    def test_idle_workers_before_an_empty_queue_wait_for_prompts(self, fleet, worker):
        idle = dataclasses.replace(worker, leases=0)
        assert self.hint(fleet, (idle,), training=QueueCounts()) is ScaleHint.PROMPTS

    def test_busy_workers_and_an_incomplete_batch_mean_that_data_is_short(self, fleet):
        assert self.hint(fleet) is ScaleHint.DATA
        assert self.hint(fleet, training=QueueCounts(finished=4)) is ScaleHint.NOTHING

    def test_a_worker_in_quarantine_is_none(self, fleet, worker):
        assert (
            self.hint(fleet, (dataclasses.replace(worker, state=WorkerState.QUARANTINED),))
            is ScaleHint.NO_WORKER
        )

    def test_a_complete_run_waits_for_nothing(self, fleet):
        assert self.hint(fleet, step=20) is ScaleHint.NOTHING
        assert self.hint(fleet, run=None) is ScaleHint.NO_TRAINER


class TestBackends:
    def test_speed_share_and_mismatch_are_summed_by_backend(self, worker):
        workers = (
            dataclasses.replace(worker, last_probe=probe(0.02, 0.5)),
            dataclasses.replace(
                worker, worker_name="cpu-1", state=WorkerState.LEFT, last_probe=probe(0.04, 0.1)
            ),
            dataclasses.replace(
                worker, worker_name="a-0", backend="ascend", generated_tokens=8_000, busy_seconds=4.0
            ),
        )
        ascend, cpu = summarize_backends(workers, {"cpu-0": 100.0, "cpu-1": 20.0})

        assert (ascend.name, ascend.busy_rate, ascend.rate, ascend.gap_mean) == ("ascend", 2000.0, None, None)
        assert ascend.token_share == 0.25
        assert (cpu.workers, cpu.active, cpu.busy_rate, cpu.rate) == (2, 1, 1200.0, 120.0)
        assert (cpu.gap_mean, cpu.gap_max) == (0.03, 0.5)

    def test_before_the_first_token_nothing_is_divided_by_zero(self, worker):
        (summary,) = summarize_backends((dataclasses.replace(worker, generated_tokens=0, busy_seconds=0.0),))
        assert (summary.token_share, summary.busy_rate) == (0.0, None)


class TestView:
    def test_it_shows_run_workers_backends_waits_and_events(self, fleet, look, text_of):
        history = FleetHistory()
        fleet.happen(2)
        fleet.change_worker(last_probe=probe(0.02, 0.5))
        look(history, 0.0)
        fleet.change_worker(generated_tokens=13_000, last_probe=probe(0.02, 0.5))
        step(fleet, 8)
        look(history, 10.0)

        text = text_of(top_view(history, title="hub 127.0.0.1:1"))

        assert "hub 127.0.0.1:1" in text
        assert "step 8/20" in text
        assert "ETA 2:00" in text
        assert "100% the trainer waits for data" in text
        assert "100 tok/s" in text
        assert "1 of 1" in text
        assert "5.0e-01" in text
        assert "invalid_results 2" in text
        assert "no. 2" in text

    def test_a_hub_that_fell_silent_leaves_its_last_word_and_the_reason(self, fleet, look, text_of):
        history = FleetHistory()
        look(history, 0.0)
        text = text_of(top_view(history, title="hub", problem="the hub does not answer"))
        assert "the hub does not answer" in text
        assert "cpu-0" in text

    def test_a_worker_that_left_takes_no_line(self, fleet, look, text_of):
        fleet.change_worker(state=WorkerState.LEFT)
        history = FleetHistory()
        look(history, 0.0)
        assert "cpu-0" not in text_of(top_view(history, title="hub"))


class TestStatus:
    def test_it_says_what_the_run_waits_for(self, fleet, text_of):
        snapshot = fetch_fleet(fleet)
        assert "now: the trainer waits for data" in text_of(fleet_view(snapshot))
        assert fleet_record(snapshot)["waits_for"] == "data"

    def test_several_backends_are_compared(self, fleet, worker, text_of):
        assert "tok per busy second" not in text_of(fleet_view(fetch_fleet(fleet)))
        fleet.workers = (worker, dataclasses.replace(worker, worker_name="a-0", backend="ascend"))
        text = text_of(fleet_view(fetch_fleet(fleet)))
        assert "tok per busy second" in text
        assert [entry["name"] for entry in fleet_record(fetch_fleet(fleet))["backends"]] == ["ascend", "cpu"]
