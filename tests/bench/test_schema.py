"""The form of a report, and the arithmetic of paired measurement."""

import json

import pytest
from typer.testing import CliRunner

from hetero_rl.bench.registry import BENCHES, Bench
from hetero_rl.bench.schema import BenchReport, Figure, machine_facts, version_facts
from hetero_rl.bench.timing import compare, fastest

FIGURE = Figure(
    name="f",
    value=2.0,
    unit="ratio",
    low=1.0,
    high=3.0,
    target=1.5,
    relation=">=",
    baseline="what it was before",
)


def test_a_report_has_the_keys_of_the_schema_and_no_other():
    report = json.loads(BenchReport(bench="b", figures=(FIGURE,)).to_json())
    assert list(report) == ["bench", "machine", "versions", "figures"]
    assert report["figures"] == [
        {
            "name": "f", "value": 2.0, "unit": "ratio", "low": 1.0, "high": 3.0,
            "baseline": "what it was before", "target": 1.5, "relation": ">=",
        }
    ]  # fmt: skip


def test_machine_facts_name_no_host(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: pytest.fail("asked for the host's name"))
    assert set(machine_facts()) == {"system", "architecture", "processor", "cores", "memory_bytes"}


def test_versions_name_what_changes_the_figures():
    assert {"hetero_rl", "python", "grpcio", "protobuf", "sqlite"} <= set(version_facts())


@pytest.mark.parametrize(
    ("value", "relation", "target", "met"),
    [
        (2.0, ">=", 2.0, True),
        (2.0, ">=", 2.1, False),
        (2.0, "<=", 2.0, True),
        (2.0, "<=", 1.9, False),
        (2.0, None, None, None),
    ],
)
def test_a_figure_knows_whether_it_keeps_its_target(value, relation, target, met):
    figure = Figure(
        name="f", value=value, unit="s", low=1.0, high=3.0, target=target, relation=relation, baseline=""
    )
    assert figure.met is met


def test_a_figure_without_a_relation_to_its_target_is_refused():
    with pytest.raises(ValueError, match="together"):
        Figure(name="f", value=1, unit="s", low=1, high=1, target=1, baseline="")


def test_a_median_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="within"):
        Figure(name="f", value=4, unit="s", low=1, high=3, baseline="")


def test_a_written_report_replaces_the_earlier_one_whole(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text("old")
    BenchReport(bench="b", figures=(FIGURE,)).write(path)
    assert json.loads(path.read_text())["bench"] == "b"
    assert [file.name for file in tmp_path.iterdir()] == ["bench.json"]


class Machine:
    """A clock that only work moves: candidate and baseline take the seconds that a test says."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def work(self, name, *seconds):
        durations = iter(seconds)

        def run():
            self.log.append(name)
            self.now += next(durations)

        return run

    def clock(self):
        return self.now


def test_pairs_alternate_their_order_and_the_median_pair_decides():
    machine = Machine()
    candidate = machine.work("c", 9, 1, 1, 2, 1, 1)
    baseline = machine.work("b", 9, 4, 3, 4, 5, 100)
    ratio = compare(candidate, baseline, pairs=5, clock=machine.clock)
    assert machine.log == ["c", "b", "b", "c", "c", "b", "b", "c", "c", "b", "b", "c"]
    # 4/1, 3/1, 4/2, 5/1, 100/1
    assert (ratio.value, ratio.low, ratio.high) == (4, 2, 100)


def test_fewer_pairs_than_five_are_refused():
    with pytest.raises(ValueError, match="at least 5"):
        compare(lambda: None, lambda: None, pairs=4)


def test_the_fastest_variant_is_the_one_with_the_shortest_run():
    machine = Machine()
    variants = {"steady": machine.work("s", 2, 2, 2), "lucky": machine.work("l", 3, 1, 3)}
    assert fastest(variants, rounds=3, clock=machine.clock) == "lucky"


def test_a_ratio_becomes_a_figure_that_should_be_large():
    ratio = compare(lambda: None, lambda: None, pairs=5)
    assert ratio.figure("f", "b", target=1.0).relation == ">="
    assert ratio.figure("f", "b").relation is None


def test_the_command_prints_every_figure_and_writes_the_report(tmp_path, monkeypatch):
    from hetero_rl.cli.bench import app

    monkeypatch.setattr(
        "hetero_rl.bench.registry.Bench.run", lambda self, quick: BenchReport(bench="wire", figures=(FIGURE,))
    )
    path = tmp_path / "wire.json"
    result = CliRunner().invoke(app, ["wire", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "met" in result.output
    assert "what it was before" in result.output
    assert json.loads(path.read_text())["figures"][0]["value"] == 2.0


def test_every_registered_benchmark_can_be_imported():
    import importlib

    assert "wire" in BENCHES
    for bench in BENCHES.values():
        assert callable(importlib.import_module(bench.module).run)


def test_a_benchmark_that_returns_something_else_is_an_error(monkeypatch):
    monkeypatch.setattr("hetero_rl.bench.wire.run", lambda *, quick: None)
    with pytest.raises(TypeError, match="expected a BenchReport"):
        Bench("hetero_rl.bench.wire", "").run()
