import threading

import pytest

from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.trainer.patience import InterruptedRunError, Patience, StopSignal


@pytest.fixture
def pauses(monkeypatch):
    """Records waits instead of making them."""
    found = []
    monkeypatch.setattr(StopSignal, "pause", lambda self, seconds: (self.check(), found.append(seconds)))
    return found


def failing(times, result="done"):
    calls = []

    def call():
        calls.append(len(calls))
        if len(calls) <= times:
            raise UnreachableError("no answer")
        return result

    return call


def test_a_call_is_repeated_until_the_hub_answers(pauses):
    patience = Patience(StopSignal(threading.Event()))

    assert patience(failing(3), "asking") == "done"
    assert len(pauses) == 3
    assert all(0 <= pause <= limit for pause, limit in zip(pauses, (0.2, 0.4, 0.8), strict=True))


def test_a_refusal_is_an_answer_and_not_repeated(pauses):
    def refuse():
        raise RefusedError("no", "WRONG_RUN")

    with pytest.raises(RefusedError):
        Patience(StopSignal(threading.Event()))(refuse, "asking")
    assert pauses == []


def test_a_hub_that_stays_away_too_long_ends_the_run(pauses):
    with pytest.raises(UnreachableError):
        Patience(StopSignal(threading.Event()), seconds=-1)(failing(10), "asking")


def test_a_stop_ends_the_waiting():
    stop = threading.Event()
    stop.set()

    with pytest.raises(InterruptedRunError):
        Patience(StopSignal(stop))(failing(10), "asking")


def test_a_pause_ends_when_the_run_is_closed_from_another_thread():
    signal = StopSignal(threading.Event())
    threading.Thread(target=signal.close).start()

    with pytest.raises(InterruptedRunError):
        signal.pause(30)


def test_closing_is_not_a_request_to_stop():
    signal = StopSignal(threading.Event())
    signal.close()

    assert not signal.requested
