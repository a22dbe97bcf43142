"""One hub, one trainer and some workers as processes, and whoever kills them.

    driver (this process)
      ├── hub      `hetero-rl hub`           restarted at the same port, sometimes with a failpoint armed
      ├── trainer  tests.chaos.trainer_process
      └── workers  tests.chaos.worker_process, the real worker on a bad line

A role that ends, by the driver's SIGKILL or at a failpoint, is started again at once; each such end is one kill. The run must still end by
itself. Every process is a child of the driver and is ended by its id.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.history import History
from tests.chaos.outcome import problems_of, tails
from tests.chaos.places import HUB_FAILPOINTS, TRAINER_FAILPOINTS
from tests.chaos.roles import await_listening, free_port, make_model
from tests.chaos.trainer_process import Settings

__all__ = ["Site"]

_UNSAFE_ENDS = {"hub": "a hub", "trainer": "a trainer"}
_ROOT = Path(__file__).parents[2]


class Site:
    """A run under a seed."""

    def __init__(self, directory, seed, settings, *, workers=2, loss=0.1):
        self.directory = directory
        self.settings = settings
        self.random = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
        self.history = History(directory / "history.jsonl")
        self.loss = loss
        self.port = free_port()
        self.roles = ["hub", "trainer", *(f"w{number}" for number in range(workers))]
        self.processes = {}
        self.kills = 0
        make_model(directory)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def run(self, kills, *, seconds):
        """Lets the run go on under `kills` kills at random places, then to its end; raises when it does not end."""
        deadline = time.monotonic() + seconds
        try:
            for role in self.roles:
                self.start(role)
            while self.processes["trainer"].poll() != 0:
                assert time.monotonic() < deadline, f"the run did not end: {self.logs()}"
                if self.kills < kills:
                    self.strike(kills)
                self.restart_the_dead(armed=self.kills < kills)
                time.sleep(0.05)
        finally:
            self.end()
        return self

    def problems(self):
        """What the judge says of the finished run."""
        return problems_of(self.directory, self.settings, self.history.read())

    def strike(self, kills):
        """Waits a moment, then kills or freezes somebody."""
        time.sleep(self.random.uniform(0.0, 0.5))
        role = self.random.choice(self.roles)
        process = self.processes[role]
        if process.poll() is not None:
            return
        if self.random.random() < 0.1:
            process.send_signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(0.1, 2.0))
            process.send_signal(signal.SIGCONT)
            return
        process.kill()
        process.wait()
        self.note_kill(role, "SIGKILL")

    def restart_the_dead(self, *, armed):
        for role in self.roles:
            code = self.processes[role].poll()
            if code is None or (code == 0 and role != "hub"):
                continue
            if code == -signal.SIGKILL and self.processes[role].failpoint:
                self.note_kill(role, self.processes[role].failpoint)
            elif code != -signal.SIGKILL:
                assert role not in _UNSAFE_ENDS, f"{role} ended with {code}: {self.logs()}"
            self.start(role, armed=armed)

    def note_kill(self, role, how):
        if how != "SIGKILL" or not self.processes[role].counted:
            self.processes[role].counted = True
            self.kills += 1
            self.history.note("killed", role=role, how=how)

    def start(self, role, *, armed=False):
        failpoint = ""
        places = {"hub": HUB_FAILPOINTS, "trainer": TRAINER_FAILPOINTS}.get(role)
        if armed and places and self.random.random() < 0.7:
            failpoint = f"{self.random.choice(list(places))}@{self.random.randint(1, 4)}"
        log = (self.directory / f"{role}.log").open("ab")
        environment = {**os.environ, "HETERO_RL_FAILPOINT": failpoint, "OMP_NUM_THREADS": "1"}
        with log:
            process = subprocess.Popen(self.command(role), stdout=log, stderr=log, env=environment, cwd=_ROOT)
        process.failpoint = failpoint
        process.counted = False
        self.processes[role] = process
        if role == "hub":
            await_listening(self.address, process, self.directory / "hub.log")

    def command(self, role):
        python = [sys.executable, "-m"]
        if role == "hub":
            return [
                *(*python, "hetero_rl.cli.main", "hub", "--run-dir", str(self.directory)),
                *("--listen", self.address, "--set", "hub.heartbeat_seconds=1"),
                *("--set", "hub.lease_seconds=5"),
            ]
        if role == "trainer":
            arguments = (self.address, str(self.directory), self.settings.json())
            return [*python, "tests.chaos.trainer_process", *arguments]
        seed = str(self.random.getrandbits(32))
        return [
            *(*python, "tests.chaos.worker_process", self.address, str(self.directory)),
            *(role, seed, str(self.loss)),
        ]

    def logs(self):
        return tails(self.directory)

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)


def small_settings(total_steps):
    return Settings(
        total_steps=total_steps,
        groups_per_step=2,
        group_size=4,
        max_lag=2,
        tokens=6,
        checkpoint_every=2,
    )
