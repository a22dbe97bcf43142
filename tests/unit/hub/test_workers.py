"""Workers: joining, staying alive, being trusted, leaving."""

import dataclasses

import pytest

from hetero_rl.errors import FencedError, RefusedError
from hetero_rl.hub.handlers.fleet import list_events, list_workers, run_status
from hetero_rl.hub.handlers.workers import (
    drain,
    heartbeat,
    join,
    leave,
    quarantine,
    readmit,
    report_probe,
    sweep,
)
from hetero_rl.wire.messages import (
    Heartbeat,
    ModelDigests,
    NoWorkReason,
    ProbeResult,
    SamplingParameters,
    WeightSync,
    WorkerIdentity,
    WorkerState,
)


def probe(version=1, difference=0.01):
    return ProbeResult(
        weight_version=version,
        mean_absolute_difference=difference,
        max_absolute_difference=2 * abs(difference),
        mean_difference=0.0,
        tokens=1,
    )


def state(hub, name="w1"):
    return next(w.state for w in hub(list_workers, include_gone=True) if w.worker_name == name)


def kinds(hub):
    return [event.kind for event in hub(list_events, 0, 0)]


class TestJoin:
    def test_the_terms_are_stated(self, hub, messages):
        hub.open()
        grant = hub(join, messages.join_request("w2"))
        assert (grant.worker_epoch, grant.latest_weight_version) == (1, 1)
        assert (grant.lease_duration, grant.heartbeat_interval, grant.dead_after) == (60, 5, 15)

    def test_the_same_process_gets_the_same_epoch(self, hub):
        assert hub.open().worker_epoch == 1
        assert hub.join().worker_epoch == 1

    def test_a_new_process_fences_the_old_and_its_leases_return(self, hub):
        old = hub.open()
        hub.enqueue(0)
        hub.lease(old)
        new = hub.join(boot_id="second-boot")
        assert new.worker_epoch == 2
        assert hub(run_status).training.queued == 1
        with pytest.raises(FencedError, match="epoch 2 has taken the name"):
            hub.lease(old)

    def test_a_fenced_process_cannot_take_the_name_back(self, hub, messages):
        hub.open()
        hub.join(boot_id="second-boot")
        with pytest.raises(FencedError):
            hub(join, messages.join_request())

    def test_another_run_is_refused(self, hub, messages):
        hub.open()
        with pytest.raises(RefusedError) as caught:
            hub(join, messages.join_request("w2", run_id="other"))
        assert caught.value.reason == "WRONG_RUN"

    def test_another_tokenizer_is_refused_with_both_digests(self, hub, messages):
        hub.open()
        digests = ModelDigests(config="c" * 64, tokenizer="a" * 64)
        with pytest.raises(RefusedError) as caught:
            hub(join, messages.join_request("w2", model_digests=digests))
        assert caught.value.reason == "MODEL_MISMATCH"
        assert caught.value.details["expected_tokenizer_digest"] == "d" * 64
        assert caught.value.details["actual_tokenizer_digest"] == "a" * 64

    def test_truncated_sampling_needs_processed_log_probs(self, hub, messages):
        sampling = SamplingParameters(max_new_tokens=8, stop_token_ids=(2,), top_p=0.9)
        capable = dataclasses.replace(messages.join_request().capabilities, processed_log_probs=True)
        with pytest.raises(RefusedError) as caught:
            hub.open(sampling=sampling)
        assert caught.value.reason == "SAMPLING_CONTRACT"
        assert hub.join(capabilities=capable).worker_epoch == 1

    def test_a_worker_that_loads_no_adapters_is_refused_where_they_are_published(self, hub, messages):
        # As an old worker, which does not know the field, leaves it.
        assert messages.join_request().capabilities.adapters is False
        with pytest.raises(RefusedError, match=r'publish = "merged"') as caught:
            hub.open(adapter_weights=True)
        assert (caught.value.reason, caught.value.details) == ("INCOMPATIBLE", {"worker_name": "w1"})
        capable = dataclasses.replace(messages.join_request().capabilities, adapters=True)
        assert hub.join(capabilities=capable).worker_epoch == 1

    def test_a_worker_that_loads_adapters_joins_a_run_of_merged_weights(self, hub, messages):
        capable = dataclasses.replace(messages.join_request().capabilities, adapters=True)
        hub.open()
        assert hub.join("w2", capabilities=capable).worker_epoch == 1

    def test_a_worker_too_small_for_the_completions_is_refused(self, hub, messages):
        small = dataclasses.replace(messages.join_request().capabilities, max_sequence_tokens=8)
        hub.open()
        with pytest.raises(RefusedError) as caught:
            hub.join("w2", capabilities=small)
        assert caught.value.reason == "INCOMPATIBLE"


class TestLiveness:
    def test_silence_beyond_three_heartbeats_is_death_and_gives_leases_back(self, hub):
        worker = hub.open()
        hub.enqueue(0)
        hub.lease(worker)
        hub.clock.advance(15)
        hub(sweep)
        assert state(hub) is WorkerState.ACTIVE
        hub.clock.advance(1)
        hub(sweep)
        assert state(hub) is WorkerState.DEAD
        assert hub(run_status).training.queued == 1
        assert hub(list_workers, include_gone=False) == ()

    def test_a_heartbeat_reports_and_is_answered(self, hub):
        worker = hub.open()
        beat = Heartbeat(
            worker=worker, lease_ids=(), loaded_weight_version=1, generated_tokens=70, busy_seconds=1.5
        )
        reply = hub(heartbeat, beat)
        assert (reply.state, reply.latest_weight_version) == (WorkerState.ACTIVE, 1)
        (summary,) = hub(list_workers, include_gone=False)
        assert (summary.generated_tokens, summary.busy_seconds) == (70, 1.5)
        assert summary.loaded_weight_version == 1
        hub.clock.advance(3)
        assert hub(list_workers, include_gone=False)[0].silence == 3

    def test_what_a_version_took_a_worker_is_journaled_once_and_its_trouble_told(self, hub):
        worker = hub.open()
        sync = WeightSync(
            weight_version=1,
            from_version=0,
            manifests=1,
            fetched_bytes=8,
            fetch_seconds=0.5,
            decode_seconds=0.0,
            verify_seconds=0.25,
            pause_seconds=0.125,
            total_seconds=1.0,
            fallbacks=2,
            relay_bypasses=1,
        )
        beat = Heartbeat(
            worker=worker,
            lease_ids=(),
            loaded_weight_version=1,
            generated_tokens=0,
            busy_seconds=0.0,
            weight_syncs=(sync,),
        )
        hub(heartbeat, beat)
        hub(heartbeat, beat)
        (row,) = hub.store.syncs()
        assert (row.worker_name, row.worker_epoch, row.sync) == ("w1", 1, sync)
        assert kinds(hub)[-2:] == ["weights_damaged", "relay_bypassed"]
        counters = hub.store.counters()
        assert (counters["weights_damaged"], counters["relay_bypassed"]) == (2, 1)

    def test_a_thawed_worker_is_alive_again_without_its_leases(self, hub):
        worker = hub.open()
        hub.enqueue(0)
        hub.lease(worker)
        hub.clock.advance(100)
        hub(sweep)
        beat = Heartbeat(
            worker=worker, lease_ids=("g0.0",), loaded_weight_version=1, generated_tokens=0, busy_seconds=0.0
        )
        reply = hub(heartbeat, beat)
        assert reply.state is WorkerState.ACTIVE
        assert reply.lost_lease_ids == ("g0.0",)
        assert kinds(hub)[-2:] == ["worker_dead", "worker_returned"]

    def test_a_restarted_hub_waits_a_full_term_before_it_declares_death(self, hub):
        hub.open()
        hub.clock.advance(100)
        hub.restart()
        hub(sweep)
        assert state(hub) is WorkerState.ACTIVE
        hub.clock.advance(16)
        hub(sweep)
        assert state(hub) is WorkerState.DEAD

    def test_a_draining_worker_that_returns_still_drains(self, hub):
        worker = hub.open()
        hub(drain, "w1")
        hub.clock.advance(16)
        hub(sweep)
        assert hub.lease(worker).no_work_reason is NoWorkReason.DRAINING


class TestLeave:
    def test_leases_return_and_the_worker_is_gone(self, hub):
        worker = hub.open()
        hub.enqueue(0)
        hub.lease(worker)
        hub(leave, worker, "shutdown")
        hub(leave, worker, "shutdown")
        assert state(hub) is WorkerState.LEFT
        assert hub(run_status).training.queued == 1
        assert kinds(hub).count("worker_left") == 1

    def test_it_must_join_before_it_works_again(self, hub):
        worker = hub.open()
        hub(leave, worker, "")
        with pytest.raises(RefusedError, match="join again"):
            hub.lease(worker)
        assert hub.join() == worker
        assert hub.lease(worker).no_work_reason is NoWorkReason.QUEUE_EMPTY


class TestTrust:
    @pytest.fixture
    def worker(self, hub):
        worker = hub.open()
        hub.publish(2, step=0, tolerance=0.1)
        hub.enqueue(0)
        return worker

    def test_a_probe_within_the_tolerance_is_accepted_and_journaled(self, hub, worker):
        assert hub(report_probe, worker, probe(2, 0.1), "n") is True
        (row,) = hub.store.probes("w1")
        assert (row.accepted, row.numerics_id, row.result.mean_absolute_difference) == (True, "n", 0.1)
        assert hub(list_workers, include_gone=False)[0].last_probe == probe(2, 0.1)

    @pytest.mark.parametrize("difference", [0.11, float("nan")])
    def test_a_probe_beyond_it_quarantines_the_worker(self, hub, worker, difference):
        hub.lease(worker, version=2)
        assert hub(report_probe, worker, probe(2, difference), "n") is False
        assert state(hub) is WorkerState.QUARANTINED
        assert hub(run_status).training.queued == 1
        assert hub.store.counters()["probes_failed"] == 1
        assert kinds(hub)[-1] == "worker_quarantined"

    def test_a_version_without_card_cannot_be_probed(self, hub, worker):
        with pytest.raises(RefusedError) as caught:
            hub(report_probe, worker, probe(1), "n")
        assert caught.value.reason == "UNKNOWN_VERSION"

    def test_a_readmitted_worker_must_pass_a_card_first(self, hub, worker):
        hub(quarantine, "w1", "odd")
        hub(readmit, "w1")
        assert state(hub) is WorkerState.ACTIVE
        assert hub.lease(worker, version=2).no_work_reason is NoWorkReason.QUARANTINED
        hub(report_probe, worker, probe(2), "n")
        assert len(hub.lease(worker, version=2).leases) == 1

    @pytest.mark.parametrize("dies", [True, False])
    def test_a_restart_does_not_escape_the_card(self, hub, worker, dies):
        hub(quarantine, "w1", "odd")
        if dies:
            hub.clock.advance(16)
            hub(sweep)
        again = hub.join(boot_id="second-boot")
        assert hub.lease(again, version=2).no_work_reason is NoWorkReason.QUARANTINED
        hub(report_probe, again, probe(2), "n")
        assert len(hub.lease(again, version=2).leases) == 1

    def test_only_a_quarantine_can_be_ended(self, hub, worker):
        with pytest.raises(RefusedError, match="active, not quarantined"):
            hub(readmit, "w1")

    def test_a_worker_that_nobody_knows_is_named_with_those_known(self, hub, worker):
        with pytest.raises(RefusedError, match=r"'w9'; known: w1") as caught:
            hub(drain, "w9")
        assert caught.value.reason == "NOT_FOUND"

    def test_only_an_active_worker_drains(self, hub, worker):
        hub(drain, "w1")
        with pytest.raises(RefusedError, match="draining, not active"):
            hub(drain, "w1")

    def test_a_stranger_has_no_identity(self, hub, worker):
        with pytest.raises(RefusedError, match="never joined"):
            hub(leave, WorkerIdentity("w1", 9), "")
