import pytest

from hetero_rl.trainer.waits import CAUSES, WaitClock


class Time:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def clock(time):
    return WaitClock(time)


def test_a_wait_for_a_batch_is_given_to_what_was_under_way(time, clock):
    # Waiting from 0 to 10; a version is on its way from before until 3, grading takes from 8 to 9.5.
    with clock.waiting_for_batch():
        with clock.busy("weights"):
            time.now = 3.0
        time.now = 8.0
        with clock.busy("grading"):
            time.now = 9.5
        time.now = 10.0

    waited = clock.take()
    assert waited["grading"] == pytest.approx(1.5)
    assert waited["weights"] == pytest.approx(3.0)
    assert waited["data"] == pytest.approx(5.5)
    assert waited["publish"] == waited["checkpoint"] == 0


def test_work_that_is_still_under_way_counts_up_to_the_end_of_the_wait(time, clock):
    time.now = 1.0
    with clock.busy("weights"):
        time.now = 2.0
        with clock.waiting_for_batch():
            time.now = 6.0

    assert clock.take()["weights"] == pytest.approx(4.0)


def test_causes_add_up_to_the_wait_when_they_overlap(time, clock):
    with clock.waiting_for_batch(), clock.busy("weights"), clock.busy("grading"):
        time.now = 4.0

    waited = clock.take()
    assert sum(waited.values()) == pytest.approx(4.0)
    assert waited["grading"] == pytest.approx(4.0)


def test_known_causes_add_up_until_they_are_taken(time, clock):
    for _ in range(2):
        with clock.waiting("checkpoint"):
            time.now += 1.5

    assert clock.take()["checkpoint"] == pytest.approx(3.0)
    assert clock.take() == dict.fromkeys(CAUSES, 0.0)


def test_a_wait_that_ends_in_an_error_counts(time, clock):
    def fail():
        with clock.waiting("publish"):
            time.now = 2.0
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert clock.take()["publish"] == pytest.approx(2.0)
