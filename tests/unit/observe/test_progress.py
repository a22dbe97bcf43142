import pytest

from hetero_rl.observe.progress import Evaluation, RunProgress, duration, sparkline


@pytest.fixture
def progress():
    return RunProgress(total_steps=10)


def test_a_new_run_knows_nothing_yet(progress):
    assert (progress.step, progress.seconds_left, progress.waits) == (0, None, {})
    assert progress.metric("reward/mean") is None


def test_the_expected_end_follows_from_the_mean_step(progress):
    progress.observe(1, {"step_seconds": 1.0})
    progress.observe(2, {"step_seconds": 3.0})

    assert progress.seconds_left == (10 - 2) * 2.0


def test_a_metric_keeps_its_newest_value_when_a_step_does_not_write_it(progress):
    progress.observe(1, {"ess": 0.9})
    progress.observe(2, {"reward/mean": 0.5})

    assert progress.metric("ess") == 0.9


def test_evaluations_keep_their_steps(progress):
    progress.observe(0, {"eval/accuracy": 0.25})
    progress.observe(5, {"eval/accuracy": 0.75})

    assert progress.evaluations == [Evaluation(0, 0.25), Evaluation(5, 0.75)]


def test_waits_are_shares_of_the_step_largest_first_without_the_negligible(progress):
    progress.observe(
        1,
        {
            "step_seconds": 2.0,
            "wait_seconds/weights": 0.2,
            "wait_seconds/data": 1.0,
            "wait_seconds/publish": 0.001,
        },
    )

    assert progress.waits == {"data": 0.5, "weights": 0.1}


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([1.0], "▁"), ([0.0, 0.5, 1.0], "▁▅█"), ([2.0, 2.0], "▁▁")]
)
def test_a_sparkline_spans_its_own_range(values, bars):
    assert sparkline(values) == bars


def test_a_sparkline_shows_the_newest():
    assert sparkline([9.0, 0.0, 1.0], width=2) == "▁█"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3661, "1:01:01"), (-3, "0:00")]
)
def test_durations_read_as_a_clock(seconds, text):
    assert duration(seconds) == text
