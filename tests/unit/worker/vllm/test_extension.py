"""What runs in vLLM's processes and needs no vLLM: ending with the worker that started them."""

import subprocess
import sys

FOLLOWER = """
import os, sys, time
from hetero_rl.worker.engines.vllm import extension
extension._LOOK_SECONDS = 0.05
extension.WeightExtension.hetero_rl_follow(int(sys.argv[1]))
print("following", flush=True)
time.sleep(600)
"""
ENGINE = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""


def test_engine_and_worker_process_end_when_the_hetero_rl_worker_is_killed():
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as worker,
        subprocess.Popen(
            [sys.executable, "-c", ENGINE, FOLLOWER, str(worker.pid)], stdout=subprocess.PIPE, text=True
        ) as engine,
    ):
        try:
            assert engine.stdout.readline() == "following\n"
            worker.kill()  # and is not waited for: a process that has ended counts as gone

            # The end of its output: the process that followed is gone as well.
            assert not engine.stdout.read()
            assert engine.wait(90) == -9
        finally:
            worker.kill()
            engine.kill()


SPREAD = """
import sys, threading
from hetero_rl.worker.engines.vllm import extension
node = extension.node_identity() if sys.argv[1] == "here" else "elsewhere"
extension._LOOK_SECONDS = 0.05
extension.WeightExtension.hetero_rl_follow_on(4194305, node)  # a process that is not there
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print("goes on")
"""


def test_processes_that_ray_started_end_with_a_worker_of_their_own_node_only():
    here, elsewhere = (
        subprocess.run([sys.executable, "-c", SPREAD, where], capture_output=True, text=True, check=False)
        for where in ("here", "elsewhere")
    )

    assert (here.returncode, here.stdout) == (1, "")
    assert (elsewhere.returncode, elsewhere.stdout) == (0, "goes on\n")
