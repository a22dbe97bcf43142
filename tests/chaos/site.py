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
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.history import History, judge
from tests.chaos.roles import free_port, make_model
from tests.chaos.trainer_process import Settings, read_applied

__all__ = ["Site"]

HUB_FAILPOINTS = (
    "before_commit:submit_results",
    "after_commit_before_ack:submit_results",
    "before_commit:lease_work",
    "after_commit_before_ack:lease_work",
    "before_commit:take_batch",
    "after_commit_before_ack:take_batch",
    "before_commit:commit_step",
    "after_commit_before_ack:commit_step",
    "before_commit:publish_version",
    "after_commit_before_ack:publish_version",
    "before_commit:enqueue_groups",
    "after_commit_before_ack:enqueue_groups",
    "before_commit:commit_checkpoint",
    "after_commit_before_ack:commit_checkpoint",
    "before_commit:join",
    "after_commit_before_ack:join",
    "blob.before_rename",
    "blob.after_rename",
)
TRAINER_FAILPOINTS = (
    "trainer.before_checkpoint",
    "trainer.after_checkpoint",
    "trainer.before_commit",
    "trainer.after_commit",
    "trainer.before_publish",
    "trainer.after_publish",
    "trainer.after_commit_checkpoint",
)
_UNSAFE_ENDS = {"hub": "a hub", "trainer": "a trainer"}
_START_SECONDS = 120.0
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
        settings = self.settings
        return judge(
            self.history.read(),
            read_applied(self.directory),
            total_steps=settings.total_steps,
            max_lag=settings.max_lag,
            samples_per_step=settings.groups_per_step * settings.group_size,
        )

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
            failpoint = f"{self.random.choice(places)}@{self.random.randint(1, 4)}"
        log = (self.directory / f"{role}.log").open("ab")
        environment = {**os.environ, "HETERO_RL_FAILPOINT": failpoint, "OMP_NUM_THREADS": "1"}
        with log:
            process = subprocess.Popen(self.command(role), stdout=log, stderr=log, env=environment, cwd=_ROOT)
        process.failpoint = failpoint
        process.counted = False
        self.processes[role] = process
        if role == "hub":
            self.await_hub(process)

    def await_hub(self, process):
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, f"the hub did not start: {self.logs()}"
                time.sleep(0.05)
            else:
                return

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
        tails = [
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-12:])
            for path in sorted(self.directory.glob("*.log"))
        ]
        return "\n".join(tails)

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
