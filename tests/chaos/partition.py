"""How soon a cut-off site is back at work: `python -m tests.chaos.partition [--cuts 5,20,45,75] [--rounds 2] [--workers 4]`.

    host A: hub with TLS, trainer ═══ line, cut and healed ═══ host B: workers that lease, submit and beat with the product's pacing

Both hosts are network namespaces. Measured is, for each worker and each cut, the time from the line's return to the first
submission of that worker that the hub acknowledged. Short cuts are bridged by TCP, longer ones end connections, those above 15 s cost
the workers their leases.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from hetero_rl.deploy.authority import Authority
from hetero_rl.wire.bundle import write_bundle
from hetero_rl.wire.roles import Role
from hetero_rl.worker.resend import Pacing
from tests.chaos.children import fork
from tests.chaos.fast_worker import Terms, run_fast_worker
from tests.chaos.history import History
from tests.chaos.hosts import Hosts, enter, unavailable
from tests.chaos.roles import make_model, serve_hub
from tests.chaos.trainer_process import Settings
from tests.chaos.trainer_process import main as run_trainer

__all__ = ["recoveries"]

_TARGET = 30.0
_LONGEST = 150.0
_PORT = 7431
_WORKING_SECONDS = 4.0


class Partition:
    """Roles on two hosts."""

    def __init__(self, directory, hosts, workers):
        self.directory = directory
        self.hosts = hosts
        self.address = f"{hosts.addresses['A']}:{_PORT}"
        self.history = History(directory / "history.jsonl")
        self.workers = [f"w{number}" for number in range(workers)]
        self.children = {}
        make_model(directory)
        self.bundles = self.issue()

    def issue(self):
        authority = Authority.create(self.directory / "certs", days=2)
        bundles = {}
        for name, role in (("hub", Role.HUB), ("trainer", Role.TRAINER), ("site", Role.WORKER)):
            bundles[name] = str(self.directory / f"{name}.credentials")
            hosts = [self.hosts.addresses["A"]] if role is Role.HUB else []
            write_bundle(authority.issue(name, role, hosts, days=1), Path(bundles[name]))
        bundles["registry"] = str(authority.registry)
        return bundles

    def start(self):
        security = {"credentials": self.bundles["hub"], "registry": self.bundles["registry"]}
        self.fork("hub", "A", serve_hub, self.address, self.directory, {}, security)
        settings = Settings(
            10**6, groups_per_step=8, group_size=2, max_lag=4, tokens=4, checkpoint_every=10**6
        )
        self.fork(
            "trainer",
            "A",
            run_trainer,
            self.address,
            self.directory,
            settings.json(),
            self.bundles["trainer"],
        )
        terms = Terms(loss=0.0, capacity=4, pause=0.2, pacing=Pacing(), credentials=self.bundles["site"])
        for number, name in enumerate(self.workers):
            full = f"site-{name}"
            self.fork(name, "B", run_fast_worker, self.address, full, number, terms, self.history)

    def fork(self, role, host, *work):
        log = self.directory / f"{role}.log"
        self.children[role] = fork(enter, self.hosts.names[host], *work, log=log)

    def end(self):
        for child in self.children.values():
            child.kill()

    def await_work_since(self, moment):
        """Returns when each worker has had an acknowledgement after `moment`."""
        deadline = time.monotonic() + _LONGEST
        while not all(working_again(self.history.read(), worker, moment) for worker in self.full_names):
            if time.monotonic() > deadline:
                logs = [path.read_text()[-2000:] for path in self.directory.glob("*.log")]
                raise AssertionError(f"not back at work after {_LONGEST:g} s: {logs}")
            time.sleep(0.25)

    @property
    def full_names(self):
        return [f"site-{name}" for name in self.workers]


def working_again(events, worker, moment):
    """Seconds from `moment` to the worker's next acknowledgement; None when there was none."""
    later = [
        event["at"] - moment
        for event in events
        if event["event"] == "acknowledged" and event["worker"] == worker and event["at"] > moment
    ]
    return min(later, default=None)


def recoveries(events, workers):
    """For each cut its length and the seconds of each worker until it was back."""
    cuts = [event for event in events if event["event"] in {"cut", "healed"}]
    found = []
    for cut, healed in zip(cuts[::2], cuts[1::2], strict=True):
        back = [working_again(events, worker, healed["at"]) for worker in workers]
        found.append((healed["at"] - cut["at"], back))
    return found


def measure(cuts, workers, seed):
    """Cuts the line for each of the given times; returns what `recoveries` says."""
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    with tempfile.TemporaryDirectory(prefix="partition-") as directory, Hosts() as hosts:
        run = Partition(Path(directory), hosts, workers)
        try:
            run.start()
            run.await_work_since(0.0)
            for seconds in cuts:
                time.sleep(_WORKING_SECONDS * draw.uniform(0.5, 1.5))
                hosts.cut()
                run.history.note("cut")
                time.sleep(seconds)
                hosts.heal()
                moment = time.monotonic()
                run.history.note("healed")
                run.await_work_since(moment + 0.01)
        finally:
            run.end()
        return recoveries(run.history.read(), run.full_names)


def main():
    """Prints the figures; ends with 1 when a worker took longer than the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", default="5,20,45,75")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = unavailable()
    if reason:
        sys.stdout.write(f"skipped: {reason}\n")
        return 0
    cuts = [float(text) for text in options.cuts.split(",")] * options.rounds
    found = measure(cuts, options.workers, options.seed)
    for length, back in found:
        sys.stdout.write(
            f"cut for {length:.0f} s: back at work after {json.dumps([round(s, 1) for s in back])} s\n"
        )
    seconds = [second for _, back in found for second in back]
    sys.stdout.write(
        f"{len(seconds)} recoveries: {statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s (worst; target "
        f"{_TARGET:g} s)\n"
    )
    return int(max(seconds) > _TARGET)


if __name__ == "__main__":
    sys.exit(main())
