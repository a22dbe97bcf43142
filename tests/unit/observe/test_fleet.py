import dataclasses
import json

from hetero_rl.observe.fleet import RECENT_EVENTS, fetch_fleet, fleet_record
from hetero_rl.observe.tables import fleet_view, headline, short_number
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.messages import ProbeResult, WorkerState


def test_only_the_newest_events_are_kept_and_older_ones_not_asked_for_again(fleet):
    fleet.happen(20)
    first = fetch_fleet(fleet)
    fleet.happen(1)

    second = fetch_fleet(fleet, after=first)

    assert [event.sequence for event in second.events] == list(range(22 - RECENT_EVENTS, 22))
    assert fleet.asked_after == [0, 20]


def test_a_long_history_is_read_page_by_page(fleet):
    fleet.happen(1500)

    assert fetch_fleet(fleet).events[-1].sequence == 1500
    assert fleet.asked_after == [0, 1000]


def test_the_record_is_json_and_names_states_in_words(fleet):
    probe = ProbeResult(
        weight_version=7,
        mean_absolute_difference=1e-4,
        max_absolute_difference=1e-3,
        mean_difference=0.0,
        tokens=9,
        log_probs=float32_column([-1.0]),
    )
    fleet.change_worker(last_probe=probe, state=WorkerState.QUARANTINED, state_reason="probe gap")

    record = json.loads(json.dumps(fleet_record(fetch_fleet(fleet))))

    assert (record["running"], record["step"], record["total_steps"]) == (True, 7, 20)
    assert record["latest_weight_version"] == 8
    assert record["adapter_weights"] is False
    assert record["training_groups"]["leased"] == 2
    (worker,) = record["workers"]
    assert (worker["name"], worker["state"], worker["state_reason"]) == ("cpu-0", "quarantined", "probe gap")
    assert worker["probe_mean_absolute_difference"] == 1e-4


def test_a_run_that_publishes_adapters_says_so(fleet, text_of):
    run = dataclasses.replace(fleet.status.run, adapter_weights=True)

    assert "weights v8 (adapters)" in text_of(headline(dataclasses.replace(fleet.status, run=run)))


def test_the_view_shows_run_queues_workers_counters_and_events(fleet, text_of):
    fleet.happen(1)

    text = text_of(fleet_view(fetch_fleet(fleet)))

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "quickstart step 7/20 weights v8 max lag 2 hub up 1:15 trainer connected" in lines
    assert "training 3 2 1 4 28" in lines
    assert "cpu-0 cpu active v7 2 96 12.0k 1200 - 0s ago" in lines
    assert "counted invalid_results 2" in lines
    assert lines[-1].endswith("worker_joined cpu-0: no. 1")


def test_a_hub_without_a_run_and_without_workers_says_so(fleet, text_of):
    fleet.status = dataclasses.replace(fleet.status, run=None, counters={})
    fleet.workers = ()

    text = text_of(fleet_view(fetch_fleet(fleet)))

    assert "no trainer has opened a run yet" in text
    assert "no worker has joined yet" in text


def test_numbers_stay_short():
    assert [short_number(value) for value in (0, 999, 9_999, 12_345, 123_456, 1.5e6, 2.5e9)] == [
        "0",
        "999",
        "9999",
        "12.3k",
        "123k",
        "1.5M",
        "2.5G",
    ]
