"""Which work a worker gets, and how a lease ends."""

import dataclasses

import pytest

from hetero_rl.errors import InvalidMessageError
from hetero_rl.hub.handlers.fleet import run_status
from hetero_rl.hub.handlers.leasing import expire_leases
from hetero_rl.hub.handlers.queue import take_batch
from hetero_rl.hub.handlers.runs import close_run
from hetero_rl.hub.handlers.workers import drain, heartbeat, quarantine, sweep
from hetero_rl.wire.messages import Heartbeat, NoWorkReason, Purpose


def group_ids(grant):
    return [lease.work.group_id for lease in grant.leases]


def beat(hub, worker, *lease_ids):
    return hub(
        heartbeat,
        Heartbeat(
            worker=worker, lease_ids=lease_ids, loaded_weight_version=1, generated_tokens=7, busy_seconds=0.5
        ),
    )


def test_groups_are_leased_whole_and_in_order(hub):
    worker = hub.open()
    hub.enqueue(0, 1)
    grant = hub.lease(worker, free=8)
    assert group_ids(grant) == ["g0", "g1"]
    lease = grant.leases[0]
    assert lease.work.sample_indices == (0, 1)
    assert lease.time_to_live == 60
    assert lease.min_weight_version == 1
    assert grant.no_work_reason is None


def test_the_credits_bound_what_is_leased(hub):
    worker = hub.open()
    hub.enqueue(0, 1)
    assert group_ids(hub.lease(worker, free=3)) == ["g0"]


def test_an_idle_worker_gets_a_group_larger_than_its_credits(hub):
    worker = hub.open()
    hub.enqueue(0, 1, group_size=4)
    assert group_ids(hub.lease(worker, free=1)) == ["g0"]
    grant = hub.lease(worker, free=1)
    assert group_ids(grant) == []
    assert grant.no_work_reason is NoWorkReason.QUEUE_EMPTY


def test_a_worker_without_room_must_not_ask(hub):
    worker = hub.open()
    with pytest.raises(InvalidMessageError, match="free_sequences is 0"):
        hub.lease(worker, free=0)


def test_evaluation_comes_first(hub):
    worker = hub.open()
    hub.enqueue(0)
    hub.enqueue(0, purpose=Purpose.EVALUATION)
    assert group_ids(hub.lease(worker)) == ["e0", "g0"]


def test_leases_of_long_prompts_fit_into_a_message(hub, messages):
    # Half of 2048 bytes holds 4 prompts of up to 64 tokens of 4 bytes.
    limits = dataclasses.replace(messages.run_request().limits, max_prompt_tokens=64)
    worker = hub.open(limits=limits)
    hub.context.settings = dataclasses.replace(hub.settings, max_message_bytes=2048)
    hub.enqueue(*range(6), purpose=Purpose.EVALUATION)
    assert len(hub.lease(worker, free=99).leases) == 4


def test_an_empty_queue_says_so(hub):
    worker = hub.open()
    grant = hub.lease(worker)
    assert grant.no_work_reason is NoWorkReason.QUEUE_EMPTY
    assert grant.latest_weight_version == 1


def test_nothing_starts_without_weights(hub):
    worker = hub.open()
    hub.enqueue(0)
    grant = hub.lease(worker, version=0)
    assert grant.no_work_reason is NoWorkReason.WEIGHTS_TOO_OLD
    assert grant.min_weight_version == 1


def test_the_gate_holds_back_what_would_be_too_stale(hub):
    # B = 2, max_lag = 1: groups 4 and 5 belong to step 3 and need weights of at least one step.
    worker = hub.open()
    hub.enqueue(0, 1, 2, 3, 4, 5)
    assert group_ids(hub.lease(worker, free=99)) == ["g0", "g1", "g2", "g3"]
    grant = hub.lease(worker, free=99)
    assert grant.no_work_reason is NoWorkReason.STALENESS_GATE
    hub.publish(2, step=1)
    grant = hub.lease(worker, free=99)
    assert grant.no_work_reason is NoWorkReason.WEIGHTS_TOO_OLD
    assert grant.min_weight_version == 2
    assert group_ids(hub.lease(worker, version=2, free=99)) == ["g4", "g5"]


def test_a_group_may_ask_for_newer_weights(hub):
    worker = hub.open()
    hub.enqueue(0, min_weight_version=2)
    assert hub.lease(worker).no_work_reason is NoWorkReason.STALENESS_GATE
    hub.publish(2, step=0)
    assert hub.lease(worker).no_work_reason is NoWorkReason.WEIGHTS_TOO_OLD
    assert group_ids(hub.lease(worker, version=2)) == ["g0"]


def test_evaluation_of_weights_to_come_does_not_hold_up_training(hub):
    worker = hub.open()
    hub.enqueue(0, purpose=Purpose.EVALUATION, min_weight_version=9)
    hub.enqueue(0)
    assert group_ids(hub.lease(worker)) == ["g0"]


def test_an_unknown_version_starts_nothing(hub):
    worker = hub.open()
    hub.enqueue(0)
    assert hub.lease(worker, version=77).no_work_reason is NoWorkReason.WEIGHTS_TOO_OLD


def test_a_lease_without_heartbeat_returns_to_the_front(hub):
    worker = hub.open()
    other = hub.join("w2")
    hub.enqueue(0, 1, 2)
    hub.lease(worker, free=2)
    hub.clock.advance(59)
    hub(expire_leases)
    assert group_ids(hub.lease(other, free=2)) == ["g1"]
    hub.clock.advance(2)
    hub(expire_leases)
    grant = hub.lease(other, free=2)
    assert group_ids(grant) == ["g0"]
    assert grant.leases[0].attempt == 1
    assert grant.leases[0].lease_id != "g0.0"
    assert hub.store.counters()["leases_expired"] == 1


def test_a_heartbeat_renews_the_leases_it_names(hub):
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.lease(worker)
    hub.clock.advance(40)
    beat(hub, worker, "g0.0")
    hub.clock.advance(40)
    hub(expire_leases)
    reply = beat(hub, worker, "g0.0", "g1.0", "made-up")
    assert reply.lost_lease_ids == ("g1.0", "made-up")


def test_a_sweep_reads_no_lease_while_it_knows_when_each_ends(hub, monkeypatch):
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.lease(worker)
    hub(expire_leases)
    monkeypatch.setattr(hub.store, "leases", None)
    hub(expire_leases)
    hub.clock.advance(61)
    hub(expire_leases)
    assert hub.store.count_leases() == 0
    assert hub.store.counters()["leases_expired"] == 2


@pytest.mark.parametrize("forgotten", ["g0.0", "made-up"])
def test_a_sweep_finds_out_what_an_undone_call_left_behind(hub, forgotten):
    worker = hub.open()
    hub.enqueue(0, 1)
    hub.lease(worker)
    ends = hub.context.liveness.lease_ends
    ends.pop(forgotten, None)
    ends.setdefault("made-up", hub.clock.monotonic() + 30)
    hub.clock.advance(31)
    hub(expire_leases)
    assert set(ends) == {"g0.0", "g1.0"}
    assert hub.store.count_leases() == 2


def test_a_restarted_hub_gives_every_lease_a_full_term(hub):
    worker = hub.open()
    hub.enqueue(0)
    hub.lease(worker)
    hub.clock.advance(59)
    hub.restart()
    hub(expire_leases)
    hub.clock.advance(59)
    hub(expire_leases)
    assert beat(hub, worker, "g0.0").lost_lease_ids == ()
    hub.clock.advance(61)
    hub(expire_leases)
    assert beat(hub, worker, "g0.0").lost_lease_ids == ("g0.0",)


def test_the_rest_of_a_half_finished_group_is_leased_again(hub, messages):
    worker = hub.open()
    hub.enqueue(0)
    (lease,) = hub.lease(worker).leases
    hub.submit(worker, lease, final=False, results=messages.batch(lease, indices=(1,)))
    hub.clock.advance(61)
    hub(expire_leases)
    (again,) = hub.lease(worker).leases
    assert again.work.sample_indices == (0,)


def test_a_returned_group_never_starts_under_older_weights_than_before(hub):
    # It was counted on for the deadline of the weights it was first leased under.
    worker = hub.open()
    hub.publish(2, step=1)
    hub.enqueue(0)
    hub.lease(worker, version=2)
    hub.clock.advance(61)
    hub(expire_leases)
    assert hub.lease(worker, version=1).no_work_reason is NoWorkReason.WEIGHTS_TOO_OLD
    assert group_ids(hub.lease(worker, version=2)) == ["g0"]


def test_a_draining_worker_gets_nothing_new(hub):
    worker = hub.open()
    hub.enqueue(0)
    hub(drain, "w1")
    assert hub.lease(worker).no_work_reason is NoWorkReason.DRAINING


def test_a_quarantined_worker_gets_nothing_and_loses_its_leases(hub):
    worker = hub.open()
    hub.enqueue(0)
    hub.lease(worker)
    hub(quarantine, "w1", "odd numbers")
    assert hub.lease(worker).no_work_reason is NoWorkReason.QUARANTINED
    assert hub(run_status).training.queued == 1


def test_a_complete_run_sends_workers_home(hub):
    worker = hub.open()
    hub(close_run, 1, complete=True)
    assert hub.lease(worker).no_work_reason is NoWorkReason.RUN_COMPLETE


def test_the_gate_follows_the_order_of_ordinals_and_not_of_taking(hub):
    # g1 is slow and overtaken by g2: step 1 trains g0 and g2. The gate of later groups does not move because of it.
    worker = hub.open(max_lag=2)
    hub.enqueue(0, 1, 2, 3)
    leases = {lease.work.group_id: lease for lease in hub.lease(worker).leases}
    hub.submit(worker, leases["g0"])
    hub.submit(worker, leases["g2"])
    assert hub(take_batch, 1, 1) == ("g0", "g2")


def test_a_worker_declared_dead_gets_nothing_from_a_poll_it_left_behind(hub):
    from hetero_rl.hub.handlers.leasing import lease_work

    worker = hub.open()
    hub.enqueue(0)
    hub.clock.advance(16)
    hub(sweep)
    grant = hub(lease_work, worker, loaded_weight_version=1, free_sequences=8, waiting=True)
    assert group_ids(grant) == []
    assert group_ids(hub.lease(worker)) == ["g0"]
