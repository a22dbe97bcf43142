import pytest

from hetero_rl.bench.overlap import Schedule, simulate


def test_generation_keeps_the_slots_busy_as_long_as_the_steps_take():
    schedule = Schedule(steps=10, groups_per_step=4, slots=2, step_seconds=0.5)

    seconds = schedule.group_seconds()

    assert len(seconds) == 40
    assert sum(seconds) / 2 == pytest.approx(10 * 0.5)
    assert max(seconds) > 2 * min(seconds)


def test_a_simulated_run_takes_at_least_the_bound_and_says_what_it_waited_for():
    ratio, waits = simulate(Schedule(steps=3, groups_per_step=2, slots=2, step_seconds=0.02))

    # The first batch overlaps with nothing.
    assert ratio > 1
    assert {"data", "grading", "weights", "publish"} <= waits.keys()
    assert 0 < sum(waits.values()) < 1
