import pytest

from hetero_rl.errors import LaunchError, UnreachableError
from hetero_rl.launch import calibrated_backend
from hetero_rl.launch.calibrated_backend import while_unreachable

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(calibrated_backend, "_POLL_SECONDS", 0.0)


class Hub:
    """Does not answer the first calls."""

    def __init__(self, silent):
        self.silent = silent
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.silent:
            raise UnreachableError(f"call {self.calls} got no answer")
        return "scores"


def ask(hub, *, seconds=60.0, failure=None):
    said = []
    answer = while_unreachable(hub, seconds=seconds, failure=lambda: failure, notify=said.append)
    return answer, said


def test_a_missed_ping_does_not_end_a_calibration():
    hub = Hub(silent=3)
    answer, said = ask(hub)
    assert answer == "scores"
    assert hub.calls == 4
    assert [text.rpartition(": ")[2] for text in said] == [f"call {n} got no answer" for n in (1, 2, 3)]


def test_a_hub_that_never_answers_is_given_up():
    with pytest.raises(UnreachableError, match="call 1"):
        ask(Hub(silent=10), seconds=-1.0)


def test_what_the_supervisor_reported_comes_first():
    with pytest.raises(LaunchError, match="the worker died"):
        ask(Hub(silent=10), failure=LaunchError("the worker died"))
