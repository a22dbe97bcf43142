import pytest

from hetero_rl.bench.overlap import simulate
from hetero_rl.bench.overlap_gate import least_wall, taken_groups
from hetero_rl.bench.overlap_hub import ONE_WAVE, Schedule
from hetero_rl.bench.overlap_real import overlap_of


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


def test_without_lag_generation_and_training_take_turns():
    # One group of 1 s for each step of 1 s: generate, train, generate, train, generate, train.
    wall = least_wall([1.0] * 3, slots=1, groups_per_step=1, step_seconds=1.0, max_lag=0)

    assert wall == pytest.approx(6)


def test_with_a_lag_of_one_only_the_first_group_is_waited_for():
    wall = least_wall([1.0] * 3, slots=1, groups_per_step=1, step_seconds=1.0, max_lag=1)

    assert wall == pytest.approx(4)


def test_a_slow_group_holds_up_the_step_that_must_train_it():
    # Group 1 runs from 1 to 6, group 2 from 6 to 7; steps end at 2, 7 and 8.
    wall = least_wall([1.0, 5.0, 1.0], slots=1, groups_per_step=1, step_seconds=1.0, max_lag=1)

    assert wall == pytest.approx(8)


def test_many_groups_in_a_step_leave_the_gate_little_to_cost_and_one_wave_does_not():
    assert 1 < Schedule().least_wall / Schedule().bound < 1.05
    assert ONE_WAVE.least_wall / ONE_WAVE.bound > 1.2


def test_groups_are_taken_by_the_hubs_rule():
    # Two groups a step and a lag of 1. Groups 0 to 3 began with step 0, so all must be trained in steps 1 and 2.
    started = {0: 0, 1: 0, 2: 0, 3: 0}

    assert taken_groups(1, 2, 1, started, {0, 3}, set()) == (0, 3)
    assert taken_groups(1, 2, 1, started, {3}, set()) is None
    assert taken_groups(2, 2, 1, started, {0, 1, 2, 3}, {0, 3}) == (1, 2)


def test_the_work_of_a_run_is_read_between_its_lines():
    # Ten seconds between the lines, three of them waited; the engine was busy 8 of 10 s between readings 2 s before and after.
    records = [
        {"step": 5, "time": 100.0, "wait_seconds/data": 50.0},
        {"step": 6, "time": 104.0, "wait_seconds/data": 1.0, "wait_seconds/grading": 0.5},
        {"step": 7, "time": 110.0, "wait_seconds/data": 1.5, "wait_seconds/grading": 0.0},
    ]
    busy = [(98.0, 10.0), (102.0, 13.2), (112.0, 21.2), (113.0, 22.0)]

    run = overlap_of(records, busy)

    assert run.wall == pytest.approx(10)
    assert run.training == pytest.approx(7)
    # 11.6 at 100, 19.6 at 110.
    assert run.generation == pytest.approx(8)
    assert run.over_bound == pytest.approx(1.25)
    assert run.waits == pytest.approx({"data": 2.5, "grading": 0.5})
