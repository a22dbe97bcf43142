"""What ends early goes on as the same run: same number of steps, nothing trained twice, nobody left behind."""

import contextlib
import os
import select
import signal

from hetero_rl.hub.journal_reader import trained_twice

STEPS = 40


def assert_whole(training) -> None:
    """Every step was made once, and no trajectory changed the weights twice."""
    assert [record["step"] for record in training.metrics()] == list(range(STEPS + 1))
    assert trained_twice(training.run.journal) == []


def assert_gone_soon(pids: list[int]) -> None:
    """None of these processes, which are not our children, outlives the next minute."""
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
            poller = select.poll()
            poller.register(process.fileno(), select.POLLIN)
            assert poller.poll(60_000), f"process {pid} still runs"


def test_a_killed_worker_is_replaced_and_the_run_takes_the_same_number_of_steps(train):
    training = train("--set", f"run.steps={STEPS}")
    training.wait_for_step(2)

    os.kill(training.child("worker"), signal.SIGKILL)

    assert training.finish() == 0, training.text()
    assert "worker-cpu-0 was ended by SIGKILL; starting it again" in training.text()
    assert_whole(training)


def test_a_killed_trainer_leaves_no_process_behind_and_its_run_goes_on(train):
    first = train("--set", f"run.steps={STEPS}")
    first.wait_for_step(5)
    children = first.children()

    first.process.kill()
    first.process.wait()
    assert_gone_soon(children)
    resumed = train("--set", f"run.steps={STEPS}", "--resume")

    assert resumed.finish() == 0, resumed.text()
    assert_whole(resumed)


def test_ctrl_c_drains_says_how_to_go_on_and_the_run_goes_on(train):
    first = train("--set", f"run.steps={STEPS}")
    first.wait_for_step(3)

    first.process.send_signal(signal.SIGINT)

    assert first.finish() == 130, first.text()
    assert f"hetero-rl train {first.run.config} --resume" in first.text()
    done = int(first.metrics()[-1]["step"])
    assert max(path.name for path in first.run.checkpoints.iterdir()) == f"step_{done:08d}"
    resumed = train("--set", f"run.steps={STEPS}", "--resume")
    assert resumed.finish() == 0, resumed.text()
    assert_whole(resumed)


def test_ctrl_c_twice_stops_at_once(train):
    training = train("--set", "run.steps=100000")
    training.wait_for_step(1)
    children = training.children()

    training.process.send_signal(signal.SIGINT)
    training.process.send_signal(signal.SIGTERM)

    assert training.finish(20) == 130
    assert_gone_soon(children)


def test_a_killed_hub_is_started_again_on_the_same_journal(train):
    training = train("--set", f"run.steps={STEPS}")
    training.wait_for_step(2)

    os.kill(training.child("hub"), signal.SIGKILL)

    assert training.finish() == 0, training.text()
    assert "hub was ended by SIGKILL; starting it again" in training.text()
    assert_whole(training)


def test_a_worker_that_can_never_work_ends_the_run_with_its_reason(train):
    training = train("--set", "inference.worker.model_path=/nowhere")

    assert training.finish() == 1
    printed = training.output.read_text()
    assert "worker-cpu-0 ended with exit code 2. The end of" in printed
    assert "/nowhere" in printed
    assert "Traceback" not in printed
