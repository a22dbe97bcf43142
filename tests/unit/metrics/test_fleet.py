import dataclasses

import pytest

from hetero_rl.metrics.catalogue import MOST_WORKERS
from hetero_rl.metrics.fleet import FleetReadings, fleet_readings, state_of
from hetero_rl.wire.messages import WorkerState


def values(readings):
    return {
        (reading.metric.name.removeprefix("hetero_rl_"), *reading.labels): reading.value
        for reading in readings
    }


def test_a_scrape_shows_the_run(state):
    shown = values(fleet_readings(state, {"worker_joined": 2}))

    assert shown["run_info", "quickstart"] == 1
    assert (shown["run_step",], shown["run_target_steps",]) == (7, 20)
    assert (shown["run_max_lag_steps",], shown["run_weight_version",]) == (2, 8)
    assert shown["hub_groups", "training", "committed"] == 28
    assert shown["hub_groups", "evaluation", "committed"] == 5
    assert shown["hub_incidents_total", "leases_expired"] == 2
    assert shown["hub_events_total", "worker_joined"] == 2
    assert (shown["hub_journal_writable",], shown["hub_trainer_connected",]) == (1, 1)


def test_workers_that_are_gone_are_counted_and_have_no_series_of_their_own(state):
    shown = values(fleet_readings(state, {}))

    assert shown["hub_workers", "ascend", "active"] == 1
    assert shown["hub_workers", "ascend", "left"] == 1
    assert shown["hub_worker_generated_tokens_total", "ascend-0", "ascend"] == 12_000
    assert shown["hub_worker_busy_seconds_total", "ascend-0", "ascend"] == 10.5
    assert shown["hub_worker_probe_gap_nats", "ascend-0", "ascend"] == 0.03
    assert not [key for key in shown if "ascend-1" in key]


def test_a_crowd_of_workers_does_not_make_a_crowd_of_series(state):
    crowd = tuple(
        dataclasses.replace(state.workers[0], worker_name=f"w-{number}") for number in range(MOST_WORKERS + 5)
    )
    shown = values(fleet_readings(dataclasses.replace(state, workers=crowd), {}))

    assert shown["hub_workers", "ascend", "active"] == MOST_WORKERS + 5
    assert sum(key[0] == "hub_worker_leases" for key in shown) == MOST_WORKERS


def test_before_a_run_is_open_the_hub_has_metrics_already(state):
    status = dataclasses.replace(state.status, run=None, counters={})
    shown = values(fleet_readings(dataclasses.replace(state, status=status, workers=(), writable=None), {}))

    assert shown["hub_uptime_seconds",] == 75
    assert not [key for key in shown if key[0] in {"run_info", "hub_journal_writable"}]


def test_events_are_counted_once_however_often_they_come(state, happen):
    history = [happen(1, "worker_joined"), happen(2, "checkpoint")]
    asked = []

    def ask(after):
        asked.append(after)
        return dataclasses.replace(state, events=tuple(history))  # says again what was counted

    source = FleetReadings(ask)
    source.collect()
    history.append(happen(3, "checkpoint"))
    shown = values(source.collect())

    assert asked == [0, 2]
    assert shown["hub_events_total", "worker_joined"] == 1
    assert shown["hub_events_total", "checkpoint"] == 2


def test_over_the_wire_all_pages_of_the_history_are_read(state, happen):
    class Fleet:
        def list_events(self, after, limit):
            return tuple(
                happen(number, "checkpoint") for number in range(after + 1, min(2500, after + limit) + 1)
            )

        def run_status(self):
            return state.status

        def list_workers(self, *, include_gone):
            return state.workers if include_gone else ()

    found = state_of(Fleet(), 10)

    assert [event.sequence for event in found.events] == list(range(11, 2501))
    assert found.workers == state.workers


@pytest.mark.parametrize(
    ("changes", "worker", "hint"),
    [
        ({}, {}, "data"),
        ({"step": 20}, {}, "nothing"),
        ({"trainer_connected": False}, {}, "no_trainer"),
        ({}, {"state": WorkerState.QUARANTINED}, "no_worker"),
        ({}, {"leases": 0}, "weights"),
    ],
)
def test_exactly_one_hint_is_set(state, changes, worker, hint):
    state = dataclasses.replace(
        state,
        status=dataclasses.replace(state.status, **changes),
        workers=(dataclasses.replace(state.workers[0], **worker),),
    )
    hints = {
        key[1]: value
        for key, value in values(fleet_readings(state, {})).items()
        if key[0] == "hub_scale_hint"
    }

    assert [name for name, value in hints.items() if value] == [hint]
    assert len(hints) == 6
