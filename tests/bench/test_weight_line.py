"""What is computed from what went over the paced line."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")
pytest.importorskip("zstandard", reason="the bench extra is not installed")

from hetero_rl.bench.paced_link import Pace, begins
from hetero_rl.bench.plain_line import plain_walls
from hetero_rl.bench.weight_link import Sync, sync_figures
from hetero_rl.bench.weight_updates import Update


def test_the_bound_is_the_time_of_the_bytes_and_a_round_trip():
    pace = Pace(bytes_per_second=12.5e6, round_trip_seconds=0.05)
    assert pace.bound(5_000_000) == pytest.approx(0.45)
    assert pace.delay == 0.025


def test_figures_are_ratios_of_the_syncs():
    update = Update("u", ((np.zeros(4, np.uint16), np.array([1, 0, 0, 0], np.uint16)),))
    # 1,250,000 bytes take 0.1 s and the round trip 0.05 s.
    syncs = [Sync(1_250_000, wall=0.3, arrived=0.25, goodput=6.25e6, pause=0.03)]
    figures = {figure.name: figure for figure in sync_figures(syncs, update)}
    assert figures["sync_wall_over_bound"].value == pytest.approx(2.0)
    assert figures["arrival_wall_over_bound"].value == pytest.approx(0.25 / 0.15)
    assert figures["goodput_over_pace"].value == pytest.approx(0.5)
    assert figures["pause_share"].value == pytest.approx(0.1)
    assert [figure.met for figure in figures.values()] == [False, None, False, False]


def test_a_line_that_woke_up_late_makes_up_for_it_when_bytes_had_waited():
    assert begins(10.0, asked=10.001, came=10.0011) == 10.0


def test_a_line_that_waited_for_bytes_does_not():
    assert begins(10.0, asked=10.001, came=10.003) == 10.003


def test_an_idle_line_saves_up_no_more_than_20_ms():
    assert begins(10.0, asked=50.0, came=50.0) == pytest.approx(49.98)


def test_a_busy_line_takes_bytes_when_it_is_free():
    assert begins(10.0, asked=9.5, came=9.6) == 10.0


def test_a_plain_connection_gets_every_byte_in_no_less_than_the_bound(tmp_path):
    pace = Pace(bytes_per_second=2e6, round_trip_seconds=0.02)
    walls = plain_walls(pace, 200_000, 2, tmp_path)
    # 20 ms of the line's time may have been saved up.
    assert min(walls) > pace.bound(200_000) - 0.02
    assert len(walls) == 2
