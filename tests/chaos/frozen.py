"""How long a frozen worker keeps its work: `python -m tests.chaos.frozen [--workers 25] [--rounds 2]`.

    driver ── SIGSTOP at random moments of the heartbeat interval ──► workers, each with a lease
    hub (default terms: a heartbeat every 5 s, dead after 3) ── declares them dead, queues their groups again
    heir ── leases everything that comes back, and writes down when

Measured is the time from the SIGSTOP to the moment at which another worker has the lease. Then the workers are thawed: what they
finished meanwhile must be refused.
"""

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from hetero_rl.errors import FencedError, RefusedError
from hetero_rl.wire.clients import RolloutClient, WeightClient
from hetero_rl.wire.messages import Heartbeat, Submission
from tests.chaos.children import fork
from tests.chaos.fast_worker import Terms, completion, joined
from tests.chaos.history import History
from tests.chaos.roles import Roles
from tests.chaos.trainer_process import Settings

__all__ = ["delays", "refused", "round_of"]

_TARGET = 20.0
_LONGEST = 120.0


def hold(address, name, seed, history):
    """A worker that leases one group and keeps it; once it has lost it, it hands it in all the same."""
    asyncio.run(_hold(address, name, _draw(seed), history))


def inherit(address, seed, history):
    """A worker that takes whatever comes."""
    asyncio.run(_inherit(address, _draw(seed), history))


def _draw(seed):
    return random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose


async def _hold(address, name, draw, history):
    async with RolloutClient(address) as client, WeightClient(address) as weights:
        session = await joined(client, weights, name, draw, Terms(capacity=1))
        version, leases = 0, ()
        while not leases:
            grant = await _lease(session, version)
            version, leases = grant.latest_weight_version, grant.leases
        (lease,) = leases
        history.note("holds", worker=name, group=lease.work.group_id)
        held = version
        while True:
            try:
                reply = await session.link.call(
                    "heartbeat", lambda me: client.heartbeat(_beat(me, lease, held))
                )
                lost = bool(reply.lost_lease_ids)
            except FencedError:
                lost = True
            if lost:
                break
            await asyncio.sleep(session.link.grant.heartbeat_interval)
        batch = completion(lease.work, 0, held, session, draw)
        late = Submission(
            worker=session.link.identity, sequence=1, lease_id=lease.lease_id, final=True, results=batch
        )
        try:
            await session.link.call("late", lambda _: client.submit_results(late))
        except (RefusedError, FencedError) as error:
            history.note("refused", worker=name, why=getattr(error, "reason", "FENCED"))
        else:
            history.note("accepted late", worker=name)


def _beat(identity, lease, version):
    return Heartbeat(
        worker=identity,
        lease_ids=(lease.lease_id,),
        loaded_weight_version=version,
        generated_tokens=0,
        busy_seconds=0.0,
    )


async def _lease(session, version):
    return await session.link.call(
        "lease",
        lambda identity: session.link.port.lease_work(
            identity, loaded_weight_version=version, free_sequences=session.capacity, wait=1.0
        ),
    )


async def _inherit(address, draw, history):
    async with RolloutClient(address) as client, WeightClient(address) as weights:
        session = await joined(client, weights, "heir", draw, Terms(capacity=1000))
        version, held = 0, []
        while True:
            grant = await _lease(session, version)
            version = grant.latest_weight_version
            held += grant.leases
            for lease in grant.leases:
                history.note("inherits", group=lease.work.group_id)


def delays(events):
    """Seconds from the freeze of each worker to the moment at which another one had its group."""
    holder = {event["group"]: event["worker"] for event in events if event["event"] == "holds"}
    frozen = {event["worker"]: event["at"] for event in events if event["event"] == "frozen"}
    back = {
        holder[event["group"]]: event["at"]
        for event in events
        if event["event"] == "inherits" and event["group"] in holder
    }
    return [back[worker] - at for worker, at in frozen.items() if worker in back]


def refused(events):
    """Workers whose late results were refused."""
    return {event["worker"] for event in events if event["event"] == "refused"}


def round_of(directory, workers, seed):
    """Freezes that many workers; returns the history."""
    roles = Roles(directory, Settings(2, workers, group_size=1, max_lag=0, tokens=4, checkpoint_every=1))
    history = History(directory / "history.jsonl")
    draw = _draw(seed)
    names = [f"w{number}" for number in range(workers)]
    children = {}
    try:
        roles.start()
        for name in names:
            children[name] = fork(
                hold, roles.address, name, draw.getrandbits(32), history, log=directory / f"{name}.log"
            )
        _await(lambda: _count(history, "holds") == workers, "leases of all workers")
        # From here on: what comes back goes to the heir.
        children["heir"] = fork(
            inherit, roles.address, draw.getrandbits(32), history, log=directory / "heir.log"
        )
        for name in names:
            time.sleep(draw.uniform(0.0, 10.0 / workers))
            children[name].signal(signal.SIGSTOP)
            history.note("frozen", worker=name)
        _await(lambda: _count(history, "inherits") >= workers, "all leases to come back")
        for name in names:
            children[name].signal(signal.SIGCONT)
        _await(
            lambda: _count(history, "refused") + _count(history, "accepted late") == workers, "late results"
        )
    finally:
        for child in children.values():
            child.kill()
        roles.end()
    return history.read()


def _count(history, kind):
    return sum(event["event"] == kind for event in history.read())


def _await(condition, what):
    deadline = time.monotonic() + _LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited for {_LONGEST:g} s in vain for {what}")
        time.sleep(0.1)


def main():
    """Prints the figures; ends with 1 when the worst is above the target or late results were taken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seconds, late = [], 0
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="frozen-") as directory:
            events = round_of(Path(directory), options.workers, options.seed + number)
        seconds += delays(events)
        late += len(refused(events))
    trials = options.workers * options.rounds
    sys.stdout.write(f"{[round(second, 1) for second in sorted(seconds)]}\n")
    sys.stdout.write(
        f"{len(seconds)} of {trials} leases of frozen workers were with another worker after {statistics.median(seconds):.1f} s "
        f"(median), {max(seconds):.1f} s (worst; target {_TARGET:g} s); late results of {late} of {trials} were refused\n"
    )
    return int(len(seconds) < trials or max(seconds) > _TARGET or late < trials)


if __name__ == "__main__":
    sys.exit(main())
