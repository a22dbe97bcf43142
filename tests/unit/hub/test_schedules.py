"""Random histories of a whole hub: workers that die, trainers that resume, hubs that restart. What must always hold, holds."""

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_rl.hub.handlers.admission import lag
from hetero_rl.hub.handlers.queue import take_batch
from hetero_rl.hub.handlers.retention import commit_checkpoint, prune_some
from hetero_rl.hub.handlers.runs import open_run
from hetero_rl.hub.handlers.workers import sweep
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.wire.messages import VersionSpan

STEPS = 5


class History:
    """One run under a list of random choices; `finish` then lets everything go well."""

    def __init__(self, hub, seed, max_lag, backends=("cpu", "cpu")):
        self.hub, self.random, self.max_lag = hub, random.Random(seed), max_lag  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
        self.backends = backends
        self.workers = [hub.open(max_lag=max_lag, total_steps=STEPS), hub.join("w2", backend=backends[1])]
        self.leases = []
        self.epoch, self.committed, self.checkpoint, self.version = 1, 0, 0, 1
        self.trained = Counter()
        self.boots = 0

    def step(self):
        self.random.choice(
            [self.generate] * 6
            + [self.complete] * 6
            + [self.train] * 5
            + [self.lose, self.die, self.restart, self.resume, self.save]
        )()

    def enqueue(self):
        if self.committed < STEPS:
            hub = self.hub
            missing = range(hub.store.next_train_ordinal(), min(STEPS, self.committed + self.max_lag + 2) * 2)
            hub.enqueue(*missing, epoch=self.epoch)

    def generate(self):
        self.enqueue()
        worker = self.random.choice(self.workers)
        grant = self.hub.lease(worker, self.random.randint(1, self.version), self.random.choice([2, 4, 8]))
        self.leases += [(worker, lease) for lease in grant.leases]

    def complete(self):
        if self.leases:
            worker, lease = self.leases.pop(self.random.randrange(len(self.leases)))
            if self.hub.store.lease(lease.lease_id) is None:
                return  # ended meanwhile: its results would be refused
            final = self.random.random() < 0.8
            indices = lease.work.sample_indices if final else lease.work.sample_indices[:1]
            batch = self.hub.messages.batch(
                lease, indices=indices, version_spans=self.spans(lease, len(indices))
            )
            self.hub.submit(worker, lease, final=True, results=batch)

    def spans(self, lease, samples):
        """Every completion may go over to a newer version in the middle."""
        spans = []
        for sample in range(samples):
            first = self.random.randint(lease.min_weight_version, self.version)
            second = self.random.randint(first, self.version)
            spans += [VersionSpan(sample, 0, 1, first), VersionSpan(sample, 1, 2, second)]
        return tuple(spans)

    def train(self):
        step = self.committed + 1
        if self.committed == STEPS or (group_ids := self.hub(take_batch, self.epoch, step)) is None:
            return
        for group_id in group_ids:
            for row in self.hub.store.sequences(group_id):
                assert lag(step, row.oldest_step) <= self.max_lag
                assert lag(step, row.newest_step) <= self.max_lag
        self.hub.train(step, self.epoch)
        self.trained.update({(group_id, step): 1 for group_id in group_ids})
        self.committed = step
        self.version += 1
        self.hub.publish(self.version, step=step, epoch=self.epoch)

    def save(self):
        self.checkpoint = self.committed
        self.hub(commit_checkpoint, self.epoch, self.checkpoint, self.checkpoint)
        while self.hub(prune_some):
            pass

    def resume(self):
        self.hub(
            open_run,
            self.hub.messages.run_request(
                max_lag=self.max_lag, total_steps=STEPS, resume_step=self.checkpoint
            ),
        )
        self.epoch += 1
        self.committed = self.checkpoint
        self.version += 1
        self.hub.publish(self.version, step=self.committed, epoch=self.epoch)

    def lose(self):
        self.hub.clock.advance(61)
        self.hub(sweep)

    def die(self):
        self.boots += 1
        number = self.random.randrange(2)
        self.workers[number] = self.hub.join(
            f"w{number + 1}", boot_id=f"boot-{self.boots}", backend=self.backends[number]
        )

    def restart(self):
        self.hub.restart()

    def finish(self):
        for _ in range(20 * STEPS):
            if self.committed == STEPS:
                return
            self.enqueue()
            grant = self.hub.lease(self.workers[0], self.version, 99)
            for lease in grant.leases:
                self.leases.append((self.workers[0], lease))
            while self.leases:
                self.complete()
            self.lose()
            self.train()
        raise AssertionError("the run does not come to its end")


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("max_lag", [0, 1, 2])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 80))
def test_no_history_exceeds_the_lag_stalls_or_trains_twice(make_hub, max_lag, split, seed, length):
    hub = make_hub(MemoryStore())
    hub.settings = dataclasses.replace(hub.settings, split_groups=split)
    hub.restart()
    history = History(hub, seed, max_lag, ("cpu", "ascend" if split else "cpu"))
    for _ in range(length):
        history.step()
    history.finish()
    counted = Counter()
    for step in range(1, STEPS + 1):
        commit = hub.store.commit_of(step)
        counted.update((outcome.group_id, outcome.sample_index) for outcome in commit.outcomes)
    assert len(counted) == STEPS * 2 * 2
    assert set(counted.values()) == {1}
    # A group that was trained again after a resume was trained in the same step as before.
    assert len({group_id for group_id, _ in history.trained}) == len(history.trained)
