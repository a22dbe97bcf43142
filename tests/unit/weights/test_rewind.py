"""What a delta overwrote, on the disk."""

import types

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.errors import DamagedError
from hetero_rl.weights.rewind import ChangeLog

OLD = np.arange(100, dtype="<u2")
BASE = types.SimpleNamespace(version=1)


def test_what_was_overwritten_is_put_back(tmp_path):
    log = ChangeLog(BASE, tmp_path / "log")
    log.add("first", np.array([3, 70]), OLD, 100)
    log.add("untouched", np.array([], np.int64), OLD, 100)
    log.add("second", np.array([0]), OLD[::-1].copy(), 100)
    first, second = np.zeros(100, "<u2"), np.zeros(100, "<u2")
    log.restore("first", first)
    log.restore("second", second)
    log.restore("untouched", second)
    assert {index: int(first[index]) for index in np.flatnonzero(first)} == {3: 3, 70: 70}
    assert {index: int(second[index]) for index in np.flatnonzero(second)} == {0: 99}
    assert [log.touches(name) for name in ("first", "second", "untouched")] == [True, True, False]


def test_a_log_without_room_stops_nothing_and_is_not_used(tmp_path):
    log = ChangeLog(BASE, tmp_path / "log")
    (tmp_path / "log").symlink_to("/dev/full")
    log.add("first", np.array([3, 70]), OLD, 100)
    log.add("second", np.array([3]), OLD, 100)
    with pytest.raises(DamagedError, match="no room"):
        log.touches("first")


def test_a_log_that_was_cut_is_not_used(tmp_path):
    log = ChangeLog(BASE, tmp_path / "log")
    log.add("first", np.array([3, 70]), OLD, 100)
    (tmp_path / "log").write_bytes((tmp_path / "log").read_bytes()[:-1])
    with pytest.raises(DamagedError, match="is damaged"):
        log.restore("first", np.zeros(100, "<u2"))
