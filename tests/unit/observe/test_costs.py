"""What tokens cost: by hand."""

import dataclasses

import pytest

from hetero_rl.config import load_config
from hetero_rl.config.tree import CostConfig
from hetero_rl.errors import ConfigError
from hetero_rl.observe.costs import backend_costs, seconds_present, trained_tokens
from hetero_rl.observe.fleet import fetch_fleet, fleet_record
from hetero_rl.observe.tables import fleet_view
from hetero_rl.wire.messages import Event

PRICES = CostConfig(device_hour={"cpu": 2.0}, devices_per_worker={"cpu": 4}, currency="EUR")


def happened(*entries):
    return [
        Event(sequence=number, occurred_at=at, kind=kind, worker_name=name, message="")
        for number, (at, kind, name) in enumerate(entries, 1)
    ]


def test_a_worker_is_there_from_joining_to_leaving_or_dying():
    events = happened(
        (100.0, "worker_joined", "a"),
        (130.0, "worker_left", "a"),
        (200.0, "worker_joined", "a"),
        (150.0, "worker_joined", "b"),
        (160.0, "worker_dead", "b"),
        (170.0, "worker_returned", "b"),
        (180.0, "worker_joined", "b"),
    )
    # a: 30 s, and 50 s until now; b: 10 s, and since it returned 80 s, although it also joined again.
    assert seconds_present(events, 250.0) == {"a": 80.0, "b": 90.0}


def test_trained_tokens_are_those_of_all_steps():
    records = [{"trained_tokens/cpu": 5.0, "loss": 1.0}, {"trained_tokens/cpu": 7.0, "trained_tokens/x": 1.0}]
    assert trained_tokens(records) == {"cpu": 12.0, "x": 1.0}


def test_a_million_tokens_cost_the_hours_of_all_devices(fleet):
    # Half an hour on 4 devices at 2.0 is 4.0; 12000 tokens were generated and 8000 trained on.
    (cost,) = backend_costs(PRICES, fleet.workers, {"cpu-0": 1800.0}, {"cpu": 8000.0})

    assert (cost.device_hours, cost.cost) == (2.0, 4.0)
    assert cost.per_million_generated == pytest.approx(4.0 / 12_000 * 1e6)
    assert cost.per_million_trained == pytest.approx(500.0)


def test_without_a_price_or_without_tokens_nothing_is_claimed(fleet):
    idle = dataclasses.replace(fleet.workers[0], generated_tokens=0)

    assert backend_costs(CostConfig(), fleet.workers, {}, {}) == ()
    (cost,) = backend_costs(PRICES, [idle], {"cpu-0": 60.0}, {})
    assert (cost.per_million_generated, cost.per_million_trained) == (None, None)


def test_status_shows_costs_where_prices_are_given(fleet, text_of, tmp_path):
    fleet.history = happened((0.0, "worker_joined", "cpu-0"), (3600.0, "worker_left", "cpu-0"))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "trained_tokens/cpu": 4000}\n')

    snapshot = fetch_fleet(fleet, run_dir=tmp_path, prices=PRICES)

    assert "per million trained EUR" in text_of(fleet_view(snapshot))
    assert "2000.00" in text_of(fleet_view(snapshot))  # 4 device hours at 2.0 for 4000 tokens
    assert fleet_record(snapshot)["costs"][0]["cost"] == pytest.approx(8.0)
    assert fetch_fleet(fleet).costs == ()


@pytest.mark.parametrize("price", ["-1", "inf", "nan"])
def test_a_price_is_finite_and_not_negative(price):
    with pytest.raises(ConfigError, match="device_hour"):
        load_config(overrides=[f"cost.device_hour.cpu={price}"])
