import os
import queue
import signal

import pytest

from hetero_rl.launch.interrupts import Interrupts


@pytest.fixture
def calls():
    return queue.Queue()


@pytest.fixture
def interrupts(calls):
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` would have it ignored
    with Interrupts(lambda: calls.put("drain"), lambda: calls.put("stop")) as interrupts:
        yield interrupts
    signal.signal(signal.SIGHUP, former)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_drains_and_the_second_stops(interrupts, calls, number):
    os.kill(os.getpid(), number)
    assert calls.get(timeout=100) == "drain"

    os.kill(os.getpid(), number)
    assert calls.get(timeout=100) == "stop"


def test_other_signals_mean_nothing(interrupts, calls):
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGINT)

    assert calls.get(timeout=100) == "drain"
    assert calls.empty()
    signal.signal(signal.SIGUSR1, handler)


def test_afterwards_signals_do_what_they_did_before(calls):
    before = signal.getsignal(signal.SIGINT)

    with Interrupts(lambda: calls.put("drain"), lambda: None):
        assert signal.getsignal(signal.SIGINT) is not before

    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_hangup_that_was_ignored_stays_ignored(calls):
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts(lambda: calls.put("drain"), lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)
        assert calls.get(timeout=100) == "drain"

    assert calls.empty()
    signal.signal(signal.SIGHUP, former)
