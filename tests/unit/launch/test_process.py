import fcntl
import signal

import pytest

from hetero_rl.errors import StorageError
from hetero_rl.launch.process import ManagedProcess, ProcessSpec, log_tail

WAITS_FOR_EVER = "import signal; print('ready'); signal.pause()"


def wait_for_log(process: ManagedProcess, text: str) -> None:
    """Returns once the child printed `text`; the child ends the wait by ending."""
    while text not in process.spec.log.read_text():
        assert process.wait(0.02) is None, process.spec.log.read_text()


def test_output_of_both_streams_goes_to_the_log(start):
    process = start("import sys; print('out'); print('err', file=sys.stderr)")

    assert process.wait(100) == 0
    assert sorted(process.spec.log.read_text().split()) == ["err", "out"]


def test_the_environment_is_added_to_our_own(start):
    process = start("import os; print(os.environ['EXTRA'], 'PATH' in os.environ)", EXTRA="1")

    process.wait(100)

    assert process.spec.log.read_text() == "1 True\n"


def test_stop_asks_first(start):
    process = start(
        """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready")
        signal.pause()
        """
    )
    wait_for_log(process, "ready")

    assert process.stop(100) == 0


def test_stop_kills_a_child_that_does_not_drain_within_its_grace(start):
    process = start(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS_FOR_EVER}")
    wait_for_log(process, "ready")

    assert process.stop(0.05) == -signal.SIGKILL
    assert process.describe_exit() == "was ended by SIGKILL"


def test_kill_takes_along_what_the_child_started(start, tmp_path):
    lock = tmp_path / "held-by-the-grandchild"
    process = start(
        """
        import os, subprocess, sys
        holder = "import fcntl, os, signal; f = open(os.environ['LOCK'], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        subprocess.run([sys.executable, "-c", holder + "print('locked', flush=True); signal.pause()"])
        """,
        LOCK=str(lock),
    )
    wait_for_log(process, "locked")

    process.kill()

    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # returns when the grandchild is dead, and not before


def test_a_child_sees_the_end_of_its_standard_input_when_the_parent_lets_go(start):
    process = start("import sys; sys.stdin.read(); print('parent is gone')")
    assert process.exit_code is None

    process.close()

    assert process.wait(100) == 0
    assert process.spec.log.read_text() == "parent is gone\n"


def test_a_child_is_not_in_our_process_group_so_ctrl_c_reaches_only_us(start):
    process = start("import os; print(os.getpgrp() == os.getpid())")

    process.wait(100)

    assert process.spec.log.read_text() == "True\n"


def test_a_program_that_does_not_exist_is_an_error_that_names_the_process(tmp_path):
    spec = ProcessSpec(name="hub", arguments=(str(tmp_path / "none"),), log=tmp_path / "hub.log")

    with pytest.raises(StorageError, match="hub cannot be started"):
        ManagedProcess(spec)


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))

    assert log_tail(log, 2) == "  | line 98\n  | line 99"


def test_the_tail_of_an_empty_or_missing_log_says_so(tmp_path):
    empty = tmp_path / "empty.log"
    empty.touch()

    assert "is empty" in log_tail(empty)
    assert "no log at" in log_tail(tmp_path / "missing.log")
