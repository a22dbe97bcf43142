"""Many kills and many submissions in short runs: `python -m tests.chaos.campaign DIRECTORY [--seconds N] [--enough-kills N] [--seed N]`.

    driver (this process; never starts gRPC or a thread)
      ├─fork─ hub      the real one, at one port, usually with a failpoint armed
      ├─fork─ proxy    tests.chaos.bad_proxy: what the others reach the hub through, unless --no-proxy
      ├─fork─ trainer  tests.chaos.trainer_process, usually with a failpoint armed
      └─fork─ workers  tests.chaos.fast_worker on a bad line; they download and check every version's weights

A role that ends, at its failpoint or by the driver's SIGKILL, is started again at once; each such end is one kill. Each seed is one
run. Its JSONL history is judged, one line goes into DIRECTORY/summary.jsonl, and the history is kept only where the judge found
something. A campaign that is started again goes on after the last seed of the summary, so totals add up over sessions.
"""

import argparse
import json
import random
import shutil
import signal
import string
import sys
import time
from collections import Counter
from pathlib import Path

from hetero_rl.errors import HeteroRLError
from tests.chaos.bad_proxy import ProxyTerms, run_proxy
from tests.chaos.children import fork
from tests.chaos.fast_worker import Terms, run_fast_worker
from tests.chaos.history import History
from tests.chaos.outcome import problems_of, tails
from tests.chaos.places import HUB_FAILPOINTS, TRAINER_FAILPOINTS
from tests.chaos.roles import await_listening, free_port, make_model, serve_hub
from tests.chaos.totals import describe, totals
from tests.chaos.trainer_process import Settings
from tests.chaos.trainer_process import main as run_trainer

__all__ = ["Campaign", "campaign_settings"]

_TICK = 0.01
_LONGEST_RUN = 3600.0
_LONGEST_CALM = 10.0
_BYTES_BETWEEN_STRIKES = (5_000, 60_000)  # of history: some two hundred to two thousand completions


def campaign_settings(steps):
    """A run with 512 completions in each step, each of which is submitted by itself."""
    return Settings(
        total_steps=steps,
        groups_per_step=64,
        group_size=8,
        max_lag=2,
        tokens=4,
        checkpoint_every=4,
        weights=50_000,
    )


class Campaign:
    """One run of a seed."""

    def __init__(self, directory, seed, settings, *, kills=45, workers=2, loss=0.1, proxy=True):
        self.directory = directory
        self.settings = settings
        self.draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
        self.history = History(directory / "history.jsonl")
        self.wanted = kills
        self.loss = loss
        self.seed = seed
        self.proxied = proxy
        self.address = f"127.0.0.1:{free_port()}"
        self.dialled = f"127.0.0.1:{free_port()}" if proxy else self.address
        self.roles = ["hub", "trainer", *(f"w{number}" for number in range(workers))]
        self.children = {}
        self.kills = Counter()
        make_model(directory)

    def run(self):
        """Kills until enough were killed, then lets the run end."""
        deadline = time.monotonic() + _LONGEST_RUN
        struck, room = time.monotonic(), 0
        try:
            if self.proxied:
                self.start_proxy()
            for role in self.roles:
                self.start(role)
            while self.children["trainer"].poll() != 0:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the run did not end: {self.logs()}")
                # By progress, not by time: on a busy machine a run would otherwise be killed before it comes anywhere.
                if self.killing and (self.history.size > room or time.monotonic() > struck + _LONGEST_CALM):
                    self.strike()
                    struck, room = (
                        time.monotonic(),
                        self.history.size + self.draw.randint(*_BYTES_BETWEEN_STRIKES),
                    )
                self.restart_the_dead()
                time.sleep(_TICK)
        finally:
            for child in self.children.values():
                child.kill()

    @property
    def killing(self):
        return self.kills.total() < self.wanted

    def strike(self):
        """Kills or freezes somebody; the hub dies at its failpoints mostly."""
        role = self.draw.choice(self.roles)
        child = self.children[role]
        if child.poll() is not None:
            return
        if self.draw.random() < 0.1:
            child.signal(signal.SIGSTOP)
            time.sleep(self.draw.uniform(0.05, 0.5))
            child.signal(signal.SIGCONT)
        else:
            child.kill()
            self.note_kill(role, "SIGKILL")
            self.start(role)

    def restart_the_dead(self):
        for role in self.roles:
            child = self.children[role]
            code = child.poll()
            if code is None or (code == 0 and role != "hub"):
                continue
            if code != -signal.SIGKILL:
                raise AssertionError(f"{role} ended with {code}: {self.logs()}")
            self.note_kill(role, child.failpoint)
            self.start(role)

    def note_kill(self, role, how):
        self.kills[how if how != "SIGKILL" else f"SIGKILL of {role.rstrip(string.digits)}"] += 1
        self.history.note("killed", role=role, how=how)

    def start(self, role):
        failpoint = self.failpoint(role) if self.killing else ""
        log = self.directory / f"{role}.log"
        self.children[role] = fork(*self.work(role), log=log, failpoint=failpoint)
        if role == "hub":
            await_listening(self.address, self.children[role], log)

    def start_proxy(self):
        """The proxy is none of the product's roles: it is not killed, and must not end."""
        log = self.directory / "proxy.log"
        work = run_proxy, self.dialled, self.address, self.seed, ProxyTerms(), self.history
        self.children["proxy"] = fork(*work, log=log)
        await_listening(self.dialled, self.children["proxy"], log)

    def failpoint(self, role):
        if role == "hub":
            name = self.draw.choice(list(HUB_FAILPOINTS))
            return f"{name}@{self.draw.randint(1, HUB_FAILPOINTS[name])}"
        if role == "trainer" and self.draw.random() < 0.7:
            return f"{self.draw.choice(TRAINER_FAILPOINTS)}@{self.draw.randint(1, 2)}"
        return ""

    def work(self, role):
        if role == "hub":
            return serve_hub, self.address, self.directory, {"heartbeat_seconds": 1.0, "lease_seconds": 5.0}
        if role == "trainer":
            return run_trainer, self.dialled, self.directory, self.settings.json()
        seed = self.draw.getrandbits(32)
        terms = Terms(loss=self.loss, cache=str(self.directory / "cache" / role))
        return run_fast_worker, self.dialled, role, seed, terms, self.history

    def problems(self):
        """What the judge says of the finished run."""
        return problems_of(self.directory, self.settings, self.history.read())

    def logs(self):
        return tails(self.directory)


def campaign(directory, seconds, first_seed, settings, *, enough_kills=None, **terms):
    """Runs seed after seed until the time is over or the kills of all runs are enough; returns the lines of the summary."""
    directory.mkdir(parents=True, exist_ok=True)
    summary = directory / "summary.jsonl"
    until = time.monotonic() + seconds
    done = read_summary(summary)
    seed = max([first_seed - 1, *(line["seed"] for line in done)]) + 1
    while not done or (time.monotonic() < until and not _enough(done, enough_kills)):
        done.append(one_run(directory / f"seed-{seed}", seed, settings, terms))
        with summary.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        seed += 1
    return done


def _enough(done, kills):
    return kills is not None and totals(done)["kills"] >= kills


def read_summary(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def one_run(directory, seed, settings, terms):
    """Runs and judges one seed."""
    begun = time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    run = Campaign(directory, seed, settings, **terms)
    try:
        run.run()
        problems = run.problems()
    except (AssertionError, HeteroRLError) as error:
        problems = [str(error)]
    calls = [event for event in run.history.read() if event["event"] not in {"taken", "killed"}]
    fetched = [event["size"] for event in calls if event["event"] == "fetched"]
    line = {
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "kills": dict(run.kills),
        "submissions": count(calls, "sent", "fate"),
        "acknowledged": sum(len(event["samples"]) for event in calls if event["event"] == "acknowledged"),
        "downloads": {"versions": len(fetched), "bytes": sum(fetched)},
        "proxy": proxied(calls),
        "problems": problems[:20],
    }
    if not problems:
        shutil.rmtree(directory)
    return line


def count(events, kind, key):
    counted = Counter()
    for event in events:
        if event["event"] == kind:
            counted[event[key]] += event["submissions"]
    return dict(counted)


def proxied(events):
    """What the proxy did to connections."""
    counted = Counter()
    for event in events:
        if event["event"] == "proxied":
            counted.update({kind: count for kind, count in event.items() if kind not in {"event", "at"}})
    return dict(counted)


def main():
    """Runs a campaign and prints its totals; ends with 1 when the judge found anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=45, help="of each run")
    parser.add_argument("--enough-kills", type=int, help="end once all runs of the summary have so many")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--loss", type=float, default=0.1)
    parser.add_argument("--no-proxy", action="store_true", help="let everybody reach the hub directly")
    options = parser.parse_args()
    done = campaign(
        options.directory,
        options.seconds,
        options.seed,
        campaign_settings(options.steps),
        enough_kills=options.enough_kills,
        kills=options.kills,
        loss=options.loss,
        proxy=not options.no_proxy,
    )
    sys.stdout.write(describe(totals(done)) + "\n")
    return 1 if any(line["problems"] for line in done) else 0


if __name__ == "__main__":
    sys.exit(main())
