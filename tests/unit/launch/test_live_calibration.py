"""Which workers of a running hub score, and what their answers become."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hetero_rl.errors import BackendError, LaunchError
from hetero_rl.launch.live_calibration import live_workers, score_at
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.messages import NumericsRecord, ScoreBatch, ScoreStatus, WorkerState

NUMERICS = NumericsRecord(
    engine="scripted",
    engine_version="1",
    torch_version="2",
    device_vendor="cpu",
    device_name="test",
    driver_version="",
    runtime_version="",
    data_type="float32",
    attention_backend="none",
    log_probs_mode="raw",
)


def worker(name, backend="cpu", driver="", state=WorkerState.ACTIVE):
    return SimpleNamespace(
        worker_name=name,
        backend=backend,
        state=state,
        numerics=dataclasses.replace(NUMERICS, driver_version=driver),
    )


class Fleet:
    """A hub whose answers a test decides, by worker name."""

    def __init__(self, workers, answers=None):
        self.workers = workers
        self.answers = answers or {}
        self.asked = None

    def list_workers(self, *, include_gone):
        return tuple(self.workers)

    def request_calibration(self, backends, card, version):
        self.asked = (tuple(backends), card.lengths, version)
        return tuple(self.answers)

    def get_score(self, score_id):
        return self.answers[score_id]


def scored(name, *values):
    batch = ScoreBatch(score_id=name, log_probs=float32_column(values), weight_version=3, numerics_id="n")
    return ScoreStatus(worker_name=name, scores=batch)


def test_one_worker_of_each_numerics_id_is_asked():
    fleet = Fleet([worker("a"), worker("b"), worker("c", "rocm"), worker("d", state=WorkerState.QUARANTINED)])
    assert {name: one.worker_name for name, one in live_workers(fleet, []).items()} == {
        "cpu": "a",
        "rocm": "c",
    }
    assert list(live_workers(fleet, ["rocm"])) == ["rocm"]


def test_workers_of_one_backend_with_other_drivers_are_told_apart_by_name():
    fleet = Fleet([worker("a", driver="1"), worker("b", driver="2")])
    assert list(live_workers(fleet, ["cpu"])) == ["a", "b"]


def test_a_backend_without_an_active_worker_is_named():
    with pytest.raises(BackendError, match=r"backend ascend .*\['cpu'\]"):
        live_workers(Fleet([worker("a")]), ["ascend"])
    with pytest.raises(BackendError, match="there are none"):
        live_workers(Fleet([]), [])


def test_scores_come_back_by_worker_and_sequence():
    fleet = Fleet([], {"s1": scored("a", -1.0, -2.0, -3.0), "s2": scored("b", -4.0, -5.0, -6.0)})
    found = score_at(fleet, [worker("a"), worker("b")], [[1, 2, 3], [4, 5]], 3, patience=9)
    assert fleet.asked == (("cpu",), (3, 2), 3)
    assert [part.tolist() for part in found["b"]] == [[-4.0, -5.0], [-6.0]]
    assert np.concatenate(found["a"]).tolist() == [-1.0, -2.0, -3.0]


def test_a_worker_that_went_past_the_version_makes_it_ask_again():
    late = ScoreStatus(worker_name="a", failure="the worker holds version 4 already")
    assert score_at(Fleet([], {"s1": late}), [worker("a")], [[1, 2]], 3, patience=9) is None


def test_a_worker_that_nobody_chose_is_not_waited_for():
    waiting = ScoreStatus(worker_name="b")
    fleet = Fleet([], {"s1": waiting, "s2": scored("a", -1.0)})
    assert list(score_at(fleet, [worker("a")], [[1, 2]], 3, patience=9)) == ["a"]


def test_silence_ends_with_an_error_that_names_the_worker():
    fleet = Fleet([], {"s1": ScoreStatus(worker_name="a")})
    with pytest.raises(LaunchError, match="'a'"):
        score_at(fleet, [worker("a")], [[1, 2]], 3, patience=0)
