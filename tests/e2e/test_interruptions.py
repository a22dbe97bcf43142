"""What ends early goes on as the same run: every step made once, nothing trained twice, nobody left behind.

No run here ends by itself before the test has done what it does to it: what is interrupted has steps for days, and what is
resumed is given its end then.
"""

import contextlib
import os
import select
import signal

from hetero_rl.hub.journal_reader import trained_twice

ENDLESS = ("--set", "run.steps=1000000")
PATIENCE_MS = 300_000


def assert_whole(training, steps: int) -> None:
    """Every step up to that one was made once, and no trajectory changed the weights twice."""
    assert [record["step"] for record in training.metrics()] == list(range(steps + 1))
    assert trained_twice(training.run.journal) == []


def assert_gone_soon(pids: list[int]) -> None:
    """None of these processes, which are not our children, outlives us by much."""
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
            poller = select.poll()
            poller.register(process.fileno(), select.POLLIN)
            assert poller.poll(PATIENCE_MS), f"process {pid} still runs"


def finish(training) -> int:
    """Ends a run in order; returns the last step that it made."""
    training.process.send_signal(signal.SIGINT)
    assert training.finish() == 130, training.text()
    return int(training.metrics()[-1]["step"])


def assert_replaced(training, command: str) -> None:
    """A killed process is started again, and its successor takes part in more steps than can wait for a batch."""
    training.wait_for_step(2)
    os.kill(training.child(command), signal.SIGKILL)
    training.wait_for_text("was ended by SIGKILL; starting it again")
    training.wait_for_step(int(training.metrics()[-1]["step"]) + 8)


def test_a_killed_worker_is_replaced_and_every_step_is_made_once(train):
    training = train(*ENDLESS)

    assert_replaced(training, "worker")

    assert_whole(training, finish(training))
    assert "worker-cpu-0 was ended by SIGKILL" in training.text()


def test_a_killed_hub_is_started_again_on_the_same_journal(train):
    training = train(*ENDLESS)

    assert_replaced(training, "hub")

    assert_whole(training, finish(training))
    assert "hub was ended by SIGKILL" in training.text()


def test_a_killed_trainer_leaves_no_process_behind_and_its_run_goes_on(train):
    first = train(*ENDLESS)
    first.wait_for_step(5)
    children = first.children()

    first.process.kill()
    first.process.wait()
    assert_gone_soon(children)
    steps = int(first.metrics()[-1]["step"]) + 4
    resumed = train("--set", f"run.steps={steps}", "--resume")

    assert resumed.finish() == 0, resumed.text()
    assert_whole(resumed, steps)


def test_ctrl_c_drains_says_how_to_go_on_and_the_run_goes_on(train):
    first = train(*ENDLESS)
    first.wait_for_step(3)

    done = finish(first)

    assert f"hetero-rl train {first.run.config} --resume" in first.text()
    assert max(path.name for path in first.run.checkpoints.iterdir()) == f"step_{done:08d}"
    resumed = train("--set", f"run.steps={done + 4}", "--resume")
    assert resumed.finish() == 0, resumed.text()
    assert_whole(resumed, done + 4)


def test_ctrl_c_twice_stops_at_once(train):
    training = train(*ENDLESS)
    training.wait_for_step(1)
    children = training.children()

    training.process.send_signal(signal.SIGINT)
    training.process.send_signal(signal.SIGTERM)

    assert training.finish() == 130
    assert_gone_soon(children)


def test_a_worker_that_can_never_work_ends_the_run_with_its_reason(train):
    training = train("--set", "inference.worker.model_path=/nowhere")

    assert training.finish() == 1
    printed = training.output.read_text()
    assert "worker-cpu-0 ended with exit code 2. The end of" in printed
    assert "/nowhere" in printed
    assert "Traceback" not in printed
