import queue

import pytest

from hetero_rl.launch.keeper import Keeper
from hetero_rl.launch.restart import RestartPolicy

PROMPT = RestartPolicy(max_restarts=2, first_delay=0.0)


@pytest.fixture
def keep(spec):
    """Keeps a short program; returns the keeper and a queue that gets it when it ended for good."""
    keepers: list[Keeper] = []

    def _keep(program: str, policy: RestartPolicy = PROMPT, *, may_leave: bool = True):
        ended: queue.Queue[Keeper] = queue.Queue()
        notes: list[str] = []
        keeper = Keeper(lambda: spec(program), policy, notes.append, ended.put, may_leave=may_leave)
        keepers.append(keeper)
        keeper.start()
        return keeper, ended, notes

    yield _keep
    for keeper in keepers:
        keeper.close(0)


def test_a_process_that_keeps_dying_is_given_up_after_a_bounded_number_of_restarts(keep):
    keeper, ended, notes = keep("import sys; sys.exit(3)")

    assert ended.get(timeout=100) is keeper
    assert (keeper.restarts, keeper.given_up) == (2, True)
    assert notes == ["child ended with exit code 3; starting it again in 0 s"] * 2


def test_a_killed_process_is_started_again(keep):
    keeper, _, notes = keep("import signal; signal.pause()")
    first = keeper.process

    first.kill()
    first.wait(100)
    while keeper.process is first:
        keeper.process.wait(0.01)

    assert keeper.process.exit_code is None
    assert notes == ["child was ended by SIGKILL; starting it again in 0 s"]


def test_an_error_of_use_is_not_tried_again(keep):
    keeper, ended, notes = keep("import sys; sys.exit(2)")

    assert ended.get(timeout=100) is keeper
    assert (keeper.restarts, notes) == (0, [])


def test_a_process_that_may_leave_is_let_go(keep):
    keeper, ended, _ = keep("")

    assert ended.get(timeout=100) is keeper
    assert (keeper.restarts, keeper.given_up) == (0, False)


def test_a_process_that_may_not_leave_is_started_again(keep):
    keeper, ended, _ = keep("", may_leave=False)

    assert ended.get(timeout=100) is keeper
    assert (keeper.restarts, keeper.given_up) == (2, True)


def test_close_ends_the_process_and_calls_nobody(keep):
    keeper, ended, _ = keep("import signal; signal.pause()")

    keeper.close(100)

    assert keeper.process.exit_code is not None
    assert ended.empty()


def test_close_does_not_wait_for_a_long_restart_delay(keep):
    keeper, ended, notes = keep("import sys; sys.exit(3)", RestartPolicy(first_delay=30.0))
    while not notes:
        keeper.process.wait(0.01)

    keeper.close(100)

    assert (keeper.restarts, ended.empty()) == (0, True)
