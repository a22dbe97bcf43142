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
