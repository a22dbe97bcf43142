"""Who gets how much of the work, and which part of a group: the sharing by hand, and whole runs in virtual time."""

import dataclasses
import heapq

import pytest

from hetero_rl.hub.handlers.leasing import expire_leases
from hetero_rl.hub.handlers.placement import Measured, shares
from hetero_rl.hub.handlers.queue import read_finished_group, take_batch, train_credits
from hetero_rl.hub.handlers.workers import heartbeat, quarantine
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.wire.messages import Heartbeat, NoWorkReason, Purpose


def report(hub, worker, *, tokens, seconds=10.0, leases=()):
    beat = Heartbeat(
        worker=worker,
        lease_ids=tuple(leases),
        loaded_weight_version=1,
        generated_tokens=tokens,
        busy_seconds=seconds,
    )
    return hub(heartbeat, beat)


def roomy(hub, name):
    """A worker with room for more than there ever is."""
    capabilities = hub.messages.join_request().capabilities
    return hub.join(name, capabilities=dataclasses.replace(capabilities, max_concurrent_sequences=64))


def taken(grant):
    return [(lease.work.group_id, lease.work.sample_indices) for lease in grant.leases]


@pytest.mark.parametrize(
    ("work", "workers", "expected"),
    [
        (11, {"fast": (10.0, 64), "slow": (1.0, 64)}, {"fast": 10.0, "slow": 1.0}),
        (0, {"fast": (10.0, 64), "slow": (1.0, 64)}, {"fast": 0.0, "slow": 0.0}),
        # The fast one is full at 8: the slow one takes the rest, up to its own room.
        (20, {"fast": (10.0, 8), "slow": (1.0, 64)}, {"fast": 8.0, "slow": 12.0}),
        (100, {"fast": (10.0, 8), "slow": (1.0, 16)}, {"fast": 8.0, "slow": 16.0}),
        (12, {"a": (1.0, 2), "b": (1.0, 8), "c": (2.0, 8)}, {"a": 2.0, "b": 10 / 3, "c": 20 / 3}),
    ],
)
def test_work_is_shared_out_by_speed_up_to_what_each_can_hold(work, workers, expected):
    found = shares(work, {name: Measured(*values) for name, values in workers.items()})

    assert found == pytest.approx(expected)


def test_a_slow_worker_gets_its_share_of_what_may_start_and_not_all_it_has_room_for(hub):
    hub.open(groups_per_step=11)
    fast, slow = (roomy(hub, name) for name in ("w1", "w2"))
    report(hub, fast, tokens=10_000)
    report(hub, slow, tokens=1_000)
    hub.enqueue(*range(11))

    assert len(hub.lease(slow, free=64).leases) == 1  # 22 completions may start; 2 of them are its share
    assert len(hub.lease(fast, free=64).leases) == 10


def test_work_that_no_engine_has_room_for_may_wait_at_the_workers_in_proportion_to_their_speed(hub):
    hub.open(groups_per_step=20)
    few = dataclasses.replace(hub.messages.join_request().capabilities, max_concurrent_sequences=8)
    fast, slow = (hub.join(name, capabilities=few) for name in ("w1", "w2"))
    report(hub, fast, tokens=10_000)
    report(hub, slow, tokens=1_000)
    hub.enqueue(*range(10))

    # 20 completions may start and 16 fit into both engines; 4 are left, of which 4 / 11 are the slow one's.
    assert len(hub.lease(slow, free=64).leases) == 4
    assert len(hub.lease(fast, free=64).leases) == 6


def test_a_worker_that_holds_its_share_waits_and_is_told_when_a_lease_ends(hub):
    fast = hub.open(groups_per_step=4)
    slow = hub.join("w2")
    report(hub, fast, tokens=10_000)
    report(hub, slow, tokens=1_000)
    hub.enqueue(*range(4))
    (lease,) = hub.lease(slow, free=8).leases

    refused = hub.lease(slow, free=6)

    assert (refused.leases, refused.no_work_reason) == ((), NoWorkReason.QUEUE_EMPTY)
    assert hub.context.liveness.withheld
    hub.submit(slow, lease)
    assert not hub.context.liveness.withheld
    assert len(hub.lease(slow, free=8).leases) == 1


@pytest.mark.parametrize("known", [(), ("w1",)])
def test_without_two_measured_speeds_whoever_has_room_takes_what_is_there(hub, known):
    first = hub.open(groups_per_step=4)
    second = hub.join("w2")
    for name in known:
        report(hub, {"w1": first, "w2": second}[name], tokens=10)
    hub.enqueue(*range(4))

    assert len(hub.lease(second, free=8).leases) == 4


def test_a_worker_in_quarantine_has_no_share(hub):
    fast = hub.open(groups_per_step=4)
    slow = hub.join("w2")
    report(hub, fast, tokens=10_000)
    report(hub, slow, tokens=1_000)
    hub(quarantine, "w1", "wrong weights")
    hub.enqueue(*range(4))

    assert len(hub.lease(slow, free=8).leases) == 4


class VirtualRun:
    """A run of two workers whose speeds differ, event by event, on the hub's fake clock."""

    STEPS = 40
    GROUPS = 8

    def __init__(self, hub, seconds_per_group, *, measured):
        self.hub = hub
        self.seconds_per_group = seconds_per_group
        self.measured = measured
        self.done = dict.fromkeys(seconds_per_group, 0)
        self.held = {name: [] for name in seconds_per_group}
        self.events = []
        self.step = 0
        self.enqueued = 0

    def play(self):
        """Runs to the last step; returns the seconds that it took."""
        self.hub.open(groups_per_step=self.GROUPS, max_lag=1, total_steps=self.STEPS)
        # The slow one asks first.
        self.workers = {name: roomy(self.hub, name) for name in ("w2", "w1")}
        started = self.hub.clock.now
        self.advance_trainer()
        while self.step < self.STEPS:
            when, name = heapq.heappop(self.events)
            self.hub.clock.now = when
            self.finish(name)
            self.advance_trainer()
        return self.hub.clock.now - started

    def finish(self, name):
        lease, version = self.held[name].pop(0)
        results = self.hub.messages.batch(lease, version)
        self.hub.submit(self.workers[name], lease, results=results)
        self.done[name] += 1
        if self.held[name]:
            self.begin(name)

    def begin(self, name):
        heapq.heappush(self.events, (self.hub.clock.now + self.seconds_per_group[name], name))

    def advance_trainer(self):
        if self.hub(take_batch, 1, self.step + 1) is not None:
            self.step += 1
            self.hub.train(self.step)
            self.hub.publish(self.step + 1, step=self.step)
        run = self.hub.context.store.run()
        wanted = train_credits(self.hub.context, run)
        self.hub.enqueue(*range(self.enqueued, self.enqueued + wanted))
        self.enqueued += wanted
        for name, worker in self.workers.items():
            self.ask(name, worker)

    def ask(self, name, worker):
        if self.measured:
            tokens = round(1000 / self.seconds_per_group[name])
            report(self.hub, worker, tokens=tokens, leases=[lease.lease_id for lease, _ in self.held[name]])
        free = 64 - 2 * len(self.held[name])
        if free < 1:
            return
        was_idle = not self.held[name]
        grant = self.hub.lease(worker, version=self.step + 1, free=free)
        self.held[name] += [(lease, self.step + 1) for lease in grant.leases]
        if was_idle and self.held[name]:
            self.begin(name)


def test_work_goes_to_workers_in_proportion_to_their_speed(make_hub):
    run = VirtualRun(make_hub(MemoryStore()), {"w1": 1.0, "w2": 5.0}, measured=True)

    run.play()

    assert run.done["w1"] + run.done["w2"] >= run.STEPS * run.GROUPS
    # 5 by speed; a worker without anything to do gets a group whatever its share, which favours the slow one.
    assert 3.5 < run.done["w1"] / run.done["w2"] < 6.0


def test_sharing_out_by_speed_waits_much_less_for_a_slow_worker(make_hub):
    seconds = {"w1": 1.0, "w2": 10.0}
    shared = VirtualRun(make_hub(MemoryStore()), seconds, measured=True).play()
    grabbed = VirtualRun(make_hub(MemoryStore()), seconds, measured=False).play()

    # 320 groups at 1.1 groups a second are 291 s without any waiting. A slow worker that takes all it has room for
    # makes every step wait for it.
    assert shared < 1.6 * 291
    assert grabbed > 2.5 * 291


@pytest.fixture
def split(hub):
    """A hub that spreads groups of 4 over the backends cpu and ascend."""
    hub.settings = dataclasses.replace(hub.settings, split_groups=True)
    hub.restart()
    hub.first = hub.open(groups_per_step=1)
    hub.second = hub.join("w2", backend="ascend")
    return hub


def test_each_backend_gets_half_of_a_group_that_is_spread(split):
    split.enqueue(0, group_size=4)

    assert taken(split.lease(split.first)) == [("g0", (0, 1))]
    assert taken(split.lease(split.second)) == [("g0", (2, 3))]


def test_a_spread_group_is_whole_when_both_parts_are_and_names_both_backends(split):
    split.enqueue(0, group_size=4)
    leases = {w: split.lease(w).leases[0] for w in (split.first, split.second)}
    split.submit(split.second, leases[split.second])
    assert split(take_batch, 1, 1) is None

    split.submit(split.first, leases[split.first])

    assert split(take_batch, 1, 1) == ("g0",)
    group = split(read_finished_group, "g0")
    assert group.backends == ("ascend", "cpu")
    assert [batch.sample_indices for batch in group.batches] == [(2, 3), (0, 1)]


def test_a_finished_part_is_not_queued_again_when_time_passes(split):
    split.enqueue(0, group_size=4)
    first, second = (split.lease(worker).leases[0] for worker in (split.first, split.second))
    split.submit(split.first, first)
    split.clock.advance(59)
    report(split, split.second, tokens=1, leases=[second.lease_id])

    split(expire_leases)

    assert "leases_expired" not in dict(split.context.store.counters())
    split.submit(split.second, second)
    assert split(take_batch, 1, 1) == ("g0",)


def test_a_part_whose_worker_is_lost_goes_to_the_other_backend(split):
    split.enqueue(0, group_size=4)
    split.lease(split.first)
    split.submit(split.second, split.lease(split.second).leases[0])

    split(quarantine, "w1", "wrong weights")

    assert taken(split.lease(split.second)) == [("g0", (0, 1))]


def test_a_backend_takes_groups_of_which_it_has_no_part(split):
    split.enqueue(0, 1, group_size=4)

    assert taken(split.lease(split.first, free=2)) == [("g0", (0, 1))]
    assert taken(split.lease(split.first, free=8)) == [("g1", (0, 1))]
    assert taken(split.lease(split.first, free=8)) == []
    assert taken(split.lease(split.second, free=8)) == [("g0", (2, 3)), ("g1", (2, 3))]


def test_an_idle_worker_completes_a_group_that_no_other_backend_has_taken(split):
    split.enqueue(0, group_size=4)
    split.submit(split.first, split.lease(split.first).leases[0])

    assert taken(split.lease(split.first)) == [("g0", (2, 3))]


def test_evaluation_and_runs_of_one_backend_are_not_spread(split):
    split(quarantine, "w2", "away")
    split.enqueue(0, group_size=4)
    split.enqueue(0, group_size=4, purpose=Purpose.EVALUATION)

    assert taken(split.lease(split.first, free=8)) == [("e0", (0, 1, 2, 3)), ("g0", (0, 1, 2, 3))]


def test_the_oldest_part_decides_by_when_a_spread_group_must_be_trained(split):
    split.enqueue(0, group_size=4)
    split.lease(split.first, version=1)
    split.publish(2, step=1)
    split.lease(split.second, version=2)

    assert split.context.store.group("g0").admitted_step == 0
