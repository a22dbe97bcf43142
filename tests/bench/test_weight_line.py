"""What is computed from what went over the paced line."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the codec extra is not installed")
pytest.importorskip("zstandard", reason="the bench extra is not installed")

from hetero_rl.bench.paced_link import Pace
from hetero_rl.bench.weight_link import Sync, sync_figures
from hetero_rl.bench.weight_updates import Update


def test_the_bound_is_the_time_of_the_bytes_and_a_round_trip():
    pace = Pace(bytes_per_second=12.5e6, round_trip_seconds=0.05)
    assert pace.bound(5_000_000) == pytest.approx(0.45)
    assert pace.delay == 0.025


def test_figures_are_ratios_of_the_syncs():
    update = Update("u", ((np.zeros(4, np.uint16), np.array([1, 0, 0, 0], np.uint16)),))
    # 1,250,000 bytes take 0.1 s and the round trip 0.05 s.
    syncs = [Sync(1_250_000, wall=0.3, fetch=0.25, pause=0.03)]
    figures = {figure.name: figure for figure in sync_figures(syncs, update)}
    assert figures["sync_wall_over_bound"].value == pytest.approx(2.0)
    assert figures["fetch_wall_over_bound"].value == pytest.approx(0.25 / 0.15)
    assert figures["goodput_over_pace"].value == pytest.approx(0.5)
    assert figures["pause_share"].value == pytest.approx(0.1)
    assert [figure.met for figure in figures.values()] == [False, None, False, False]
