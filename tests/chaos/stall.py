"""Memory of every role while a peer stands still: `python -m tests.chaos.stall [--seconds 600]`.

    trainer stalled   SIGSTOP of the trainer; workers go on asking, submitting and beating until nothing is to be had
    workers stalled   SIGSTOP of the workers; the trainer polls for batches that do not come
    slow readers      clients that begin downloads of weights and read next to nothing; everybody else works

Every phase lasts a third of the time. Resident memory of hub, trainer and each worker is sampled; what counts is the largest of the
last samples of a phase against the largest at the end of its first fifth, in which buffers and caches are filled. A stopped process
is a role like any other.
"""

import argparse
import asyncio
import dataclasses
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from hetero_rl.errors import HeteroRLError
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import WeightEncoding
from tests.chaos.children import fork
from tests.chaos.fast_worker import Terms, run_fast_worker
from tests.chaos.history import History
from tests.chaos.roles import Roles
from tests.chaos.trainer_process import Settings

__all__ = ["Growth", "growth"]

_LIMIT = 0.10
_WARM_UP = 0.2
_PAUSE = 0.25
_SAMPLE_SECONDS = 0.5
_LONGEST_START = 1200.0
_SLOW_READERS = 4
_READ_SECONDS = 5.0
# The hub keeps 96 MiB of chunks that were asked for lately, 2 MB for each version, and SQLite 32 MiB of pages, 90 KB a step.
_WARM_STEPS = 400
WORKERS = ("w0", "w1")
SETTINGS = Settings(
    total_steps=10**6,
    groups_per_step=32,
    group_size=8,
    max_lag=2,
    tokens=4,
    checkpoint_every=50,
    weights=500_000,
    remembers=False,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Growth:
    """Memory of one role in one phase. MiB."""

    phase: str
    role: str
    before: float
    after: float

    @property
    def share(self):
        """How much it grew after the warm-up; negative when it shrank."""
        return self.after / self.before - 1


def growth(phase, samples):
    """What samples of a phase say.

    Args:
        phase: Its name.
        samples: For each role its resident memory in MiB, in order of time.
    """
    found = []
    for role, sizes in samples.items():
        warm = max(1, round(len(sizes) * _WARM_UP))
        found.append(Growth(phase, role, max(sizes[:warm]), max(sizes[-warm:])))
    return found


class Stall:
    """One hub, one trainer without a model, and workers that submit; one of them stands still at a time."""

    def __init__(self, directory, seconds):
        self.directory = directory
        self.seconds = seconds
        self.roles = Roles(directory, SETTINGS)
        self.history = History(directory / "history.jsonl")
        self.children = {}

    def run(self):
        """Growth of every role in every phase."""
        try:
            self.start()
            found = self.phase("trainer stalled", ["trainer"])
            found += self.phase("workers stalled", WORKERS)
            self.fork("reader", read_slowly, self.roles.address)
            found += self.phase("slow readers", [])
        finally:
            for child in self.children.values():
                child.kill()
            self.roles.end()
        return found

    def start(self):
        self.roles.start()
        self.children |= self.roles.children
        for number, name in enumerate(WORKERS):
            terms = Terms(loss=0.0, capacity=64, pause=_PAUSE, cache=str(self.directory / "cache" / name))
            self.fork(name, run_fast_worker, self.roles.address, name, number, terms, self.history)
        deadline = time.monotonic() + _LONGEST_START
        while self.steps() < _WARM_STEPS:
            if time.monotonic() > deadline:
                raise AssertionError(f"the run did not begin: {self.logs()}")
            time.sleep(0.1)

    def fork(self, role, *work):
        self.children[role] = fork(*work, log=self.directory / f"{role}.log")

    def steps(self):
        return sum(event["event"] == "taken" for event in self.history.read())

    def phase(self, name, stalled):
        for role in stalled:
            self.children[role].signal(signal.SIGSTOP)
        samples = {role: [] for role in self.children if role != "reader"}
        until = time.monotonic() + self.seconds / 3
        while time.monotonic() < until:
            for role, sizes in samples.items():
                sizes.append(resident(self.children[role].pid))
            self.check_alive()
            time.sleep(_SAMPLE_SECONDS)
        for role in stalled:
            self.children[role].signal(signal.SIGCONT)
        return growth(name, samples)

    def check_alive(self):
        for role, child in self.children.items():
            if child.poll() is not None:
                raise AssertionError(f"{role} ended with {child.poll()}: {self.logs()}")

    def logs(self):
        return {path.name: path.read_text(errors="replace")[-2000:] for path in self.directory.glob("*.log")}


def resident(pid):
    """Resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def read_slowly(address):
    """Downloads of which a message is read every few seconds, until it is killed."""
    asyncio.run(_read_slowly(address))


async def _read_slowly(address):
    await asyncio.gather(*(_one_slow_reader(address) for _ in range(_SLOW_READERS)))


async def _one_slow_reader(address):
    async with WeightClient(address) as client:
        while True:
            try:
                plan = await client.get_plan(
                    held_version=0, wanted_version=0, encodings=(WeightEncoding.FULL_RAW,)
                )
                async for _ in client.fetch_blob(plan[-1].blobs[0].digest, 0):
                    await asyncio.sleep(_READ_SECONDS)
            except HeteroRLError:  # a newer version has taken its place
                await asyncio.sleep(1)


def table(found):
    """The figures as text."""
    lines = [f"{'phase':18} {'role':8} {'MiB before':>11} {'MiB after':>10} {'growth':>8}"]
    lines += [
        f"{item.phase:18} {item.role:8} {item.before:11.1f} {item.after:10.1f} {item.share:+8.1%}"
        for item in found
    ]
    return "\n".join(lines)


def main():
    """Prints the table; ends with 1 when a role grew by more than a tenth."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stall-") as directory:
        found = Stall(Path(directory), options.seconds).run()
    worst = max(found, key=lambda item: item.share)
    sys.stdout.write(f"{table(found)}\n")
    sys.stdout.write(
        f"worst: {worst.role} {worst.share:+.1%} ({worst.phase}); limit {_LIMIT:+.0%} after the first fifth of a phase\n"
    )
    return int(worst.share > _LIMIT)


if __name__ == "__main__":
    sys.exit(main())
