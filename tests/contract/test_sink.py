"""What every sink keeps; run against each of them."""

import json
import math
import re
import struct
import sys
import warnings
from types import SimpleNamespace
from typing import ClassVar

import pytest

from hetero_rl.config import load_config
from hetero_rl.errors import ConfigError
from hetero_rl.trainer.sinks import (
    JsonlSink,
    MemorySink,
    MetricsRecord,
    PrometheusSink,
    TensorBoardSink,
    tracker_sinks,
)


class MemoryCase:
    def __init__(self, directory):
        self.sink = MemorySink()

    def reopened(self):
        return self.sink

    def steps(self, name):
        return [record.step for record in self.sink.records if name in record.values]

    def value(self, step, name):
        return next(record.values[name] for record in self.sink.records if record.step == step)


class JsonlCase:
    def __init__(self, directory):
        self.path = directory / "metrics.jsonl"
        self.sink = JsonlSink(self.path)

    def reopened(self):
        return JsonlSink(self.path)

    def records(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def steps(self, name):
        return [record["step"] for record in self.records() if name in record]

    def value(self, step, name):
        return next(record[name] for record in self.records() if record["step"] == step)


class TensorBoardCase:
    def __init__(self, directory):
        self.directory = directory / "tensorboard"
        self.sink = TensorBoardSink(self.directory)

    def reopened(self):
        return TensorBoardSink(self.directory)

    def events(self, name):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(self.directory))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reader's own use of old numpy names
            accumulator.Reload()
        return accumulator.Scalars(name)

    def steps(self, name):
        return [event.step for event in self.events(name)]

    def value(self, step, name):
        return next(event.value for event in self.events(name) if event.step == step)


class Scraped(PrometheusSink):
    """Scraped after each record into a history by step, as a database of series would keep it."""

    def __init__(self, history):
        super().__init__()
        self.history = history

    def write(self, record):
        super().write(record)
        shown = {(reading.metric.name, *reading.labels): reading.value for reading in self.collect()}
        self.history[int(shown["hetero_rl_trainer_step",])] = shown


class PrometheusCase:
    NAMES: ClassVar = {
        "reward/mean": ("hetero_rl_trainer_reward_mean",),
        "good": ("hetero_rl_trainer_diagnostic", "good"),
    }

    def __init__(self, directory):
        self.history = {}
        self.sink = Scraped(self.history)

    def reopened(self):
        return Scraped(self.history)

    def steps(self, name):
        return sorted(step for step, shown in self.history.items() if self.NAMES[name] in shown)

    def value(self, step, name):
        return self.history[step][self.NAMES[name]]


class Service:
    """Stands for the module of a tracking service: `init` opens a run, which keeps what is logged."""

    def __init__(self):
        self.runs = []

    def init(self, **arguments):
        run = SimpleNamespace(arguments=arguments, logged={}, finished=False)
        run.log = lambda metrics, step: run.logged.update({step: metrics})
        run.finish = lambda: setattr(run, "finished", True)
        self.runs.append(run)
        return run


class TrackerCase:
    SERVICE = ""

    def __init__(self, directory):
        self.service = sys.modules[self.SERVICE] = Service()
        settings = [f"observability.{self.SERVICE}=true", "observability.project=mine", "run.name=r"]
        self.config, self.directory = load_config(overrides=settings), directory
        self.sink = self.reopened()

    def reopened(self):
        (sink,) = tracker_sinks(self.config, self.directory)
        return sink

    @property
    def history(self):
        """What a reader of the group takes: each run up to where a later one went on from."""
        kept = {}
        for run in self.service.runs:
            assert (run.arguments["project"], run.arguments["group"]) == ("mine", "r")
            continued = re.fullmatch(r"r-from-(\d+)", run.arguments["name"])
            last = int(continued[1]) if continued else -1
            kept = {step: metrics for step, metrics in kept.items() if step <= last} | run.logged
        return kept

    def steps(self, name):
        return sorted(step for step, metrics in self.history.items() if name in metrics)

    def value(self, step, name):
        return self.history[step][name]


class WandbCase(TrackerCase):
    SERVICE = "wandb"


class TrackioCase(TrackerCase):
    SERVICE = "trackio"


@pytest.fixture(params=[MemoryCase, JsonlCase, TensorBoardCase, PrometheusCase, WandbCase, TrackioCase])
def case(request, tmp_path, monkeypatch):
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    return request.param(tmp_path)


def write(sink, steps, value=0.5):
    for step in steps:
        sink.write(MetricsRecord(step, {"reward/mean": value, "time": 1.0}))


def test_records_can_be_read_while_the_sink_is_open(case):
    case.sink.start(resume_step=-1)
    write(case.sink, [0, 1, 2], value=0.25)

    assert case.steps("reward/mean") == [0, 1, 2]
    assert case.value(1, "reward/mean") == 0.25
    case.sink.close()


def test_a_continued_run_has_no_step_twice(case):
    case.sink.start(resume_step=-1)
    write(case.sink, [0, 1, 2, 3], value=0.25)
    case.sink.close()

    again = case.reopened()
    again.start(resume_step=1)
    write(again, [2, 3], value=0.75)
    again.close()

    assert case.steps("reward/mean") == [0, 1, 2, 3]
    assert case.value(1, "reward/mean") == 0.25
    assert case.value(2, "reward/mean") == 0.75


def test_a_run_that_continues_from_step_zero_keeps_its_first_record(case):
    case.sink.start(resume_step=-1)
    write(case.sink, [0, 1])
    case.sink.close()

    again = case.reopened()
    again.start(resume_step=0)
    write(again, [1])
    again.close()

    assert case.steps("reward/mean") == [0, 1]


def test_a_value_that_is_not_finite_does_not_spoil_the_rest(case):
    case.sink.start(resume_step=-1)
    case.sink.write(MetricsRecord(1, {"bad": math.nan, "worse": -math.inf, "good": 1.0}))
    case.sink.write(MetricsRecord(2, {"good": 2.0}))
    case.sink.close()

    assert case.value(1, "good") == 1.0
    assert case.value(2, "good") == 2.0


def test_closing_twice_or_before_the_start_does_no_harm(case):
    case.sink.close()
    case.sink.start(resume_step=-1)
    case.sink.close()
    case.sink.close()


def test_lines_of_the_json_sink_are_plain_json_with_null_for_what_is_not_finite(tmp_path):
    sink = JsonlSink(tmp_path / "run" / "metrics.jsonl")
    sink.start(resume_step=-1)
    sink.write(MetricsRecord(3, {"loss": math.nan, "lag/max": 2.0}))
    sink.close()

    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 3, "loss": null, "lag/max": 2.0}\n'


def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    sink = JsonlSink(path)
    sink.start(resume_step=2)
    sink.write(MetricsRecord(2, {"loss": 0.25}))
    sink.close()

    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [0.5, 0.25]


def test_event_files_hold_numbers_in_single_precision(tmp_path):
    case = TensorBoardCase(tmp_path)
    case.sink.start(resume_step=-1)
    case.sink.write(MetricsRecord(1, {"learning_rate": 1e-6}))
    case.sink.close()

    assert case.value(1, "learning_rate") == struct.unpack("f", struct.pack("f", 1e-6))[0]


def readings(sink):
    return {
        (reading.metric.name.removeprefix("hetero_rl_trainer_"), *reading.labels): reading.value
        for reading in sink.collect()
    }


def test_what_is_scraped_late_was_added_up_meanwhile():
    sink = PrometheusSink()
    sink.start(resume_step=4)
    sink.write(MetricsRecord(5, {"wait_seconds/batch": 1.5, "dropped/stale": 2.0, "loss": 3.0}))
    sink.write(MetricsRecord(6, {"wait_seconds/batch": 0.25, "dropped/stale": 1.0, "loss": 1.0}))

    shown = readings(sink)
    assert shown["wait_seconds_total", "batch"] == 1.75
    assert shown["dropped_sequences_total", "stale"] == 3
    assert (shown["steps_total",], shown["step",], shown["loss",]) == (2, 6, 1)


def test_the_gap_of_each_backend_is_a_series_beside_that_of_all():
    sink = PrometheusSink()
    sink.start(resume_step=-1)
    sink.write(
        MetricsRecord(
            1, {"log_prob_gap/mean": 0.02, "log_prob_gap/mean/ascend": 0.03, "diagnostics/k2/ascend": 0.5}
        )
    )

    shown = readings(sink)
    assert shown["log_prob_gap_mean_nats", "all"] == 0.02
    assert shown["log_prob_gap_mean_nats", "ascend"] == 0.03
    assert shown["diagnostic", "k2/ascend"] == 0.5


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_a_service_whose_package_is_missing_is_named_with_its_extra(monkeypatch, tmp_path, service):
    monkeypatch.setitem(sys.modules, service, None)
    config = load_config(overrides=[f"observability.{service}=true"])
    with pytest.raises(ConfigError, match=rf"hetero-rl\[{service}\]"):
        tracker_sinks(config, tmp_path)
    assert tracker_sinks(load_config(), tmp_path) == []


def test_a_service_that_opens_no_run_says_so_in_one_message(monkeypatch, tmp_path):
    def init(**_):
        raise RuntimeError("not logged in")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    (sink,) = tracker_sinks(load_config(overrides=["observability.wandb=true"]), tmp_path)
    with pytest.raises(ConfigError, match=r"observability\.wandb is on.*: not logged in"):
        sink.start(resume_step=-1)


def test_a_run_of_a_service_is_finished_at_the_end(monkeypatch, tmp_path):
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    (sink,) = tracker_sinks(load_config(overrides=["observability.wandb=true"]), tmp_path)
    sink.start(resume_step=-1)
    sink.close()
    assert [run.finished for run in service.runs] == [True]
