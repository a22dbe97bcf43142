"""A whole worker, loops and scripted engine, against a hub in memory."""

import asyncio
import dataclasses

import pytest

from hetero_rl.errors import (
    BackendError,
    ConfigError,
    EngineError,
    FencedError,
    RefusedError,
    UnreachableError,
)
from hetero_rl.wire.columns import float32_view, int32_view
from hetero_rl.wire.messages import SamplingParameters, WorkerState
from hetero_rl.worker.engines.scripted import ScriptedEngine
from hetero_rl.worker.resend import Pacing

pytestmark = pytest.mark.asyncio

ENDLESS = SamplingParameters(max_new_tokens=1_000_000, stop_token_ids=())
LONG = SamplingParameters(max_new_tokens=400, stop_token_ids=())


def sampling_versions(hub) -> set[int]:
    return {
        span.weight_version
        for batches in hub.finished.values()
        for batch in batches
        for span in batch.version_spans
    }


async def test_every_group_comes_back_and_the_worker_leaves_when_the_run_is_complete(hub, fleet):
    await hub.publish(1, probe="right")
    hub.add_groups(20)
    await fleet.serve()
    assert sorted(lease_id.split(".")[0] for lease_id in hub.finished) == sorted(f"g{n}" for n in range(20))
    assert hub.left == ["the run is complete"]
    assert hub.probes == [(1, True)]


async def test_results_carry_what_the_engine_sampled(hub, fleet):
    await hub.publish(1)
    hub.add_groups(1)
    await fleet.serve()
    ((batch,),) = hub.finished.values()
    assert batch.sample_indices == (0, 1, 2, 3)
    assert len(int32_view(batch.token_ids)) == sum(batch.lengths) == len(float32_view(batch.log_probs))
    assert all(value <= 0 for value in float32_view(batch.log_probs))
    assert [(span.sample, span.start, span.end) for span in batch.version_spans] == [
        (sample, 0, length) for sample, length in enumerate(batch.lengths)
    ]
    assert batch.numerics_id == fleet.engines[0].numerics().numerics_id


async def test_the_model_comes_from_the_hub_and_its_digests_go_into_join(hub, fleet):
    await hub.publish(1)
    await fleet.serve()
    (request,) = hub.joins
    assert request.model_digests == hub.digests
    assert request.capabilities.weight_encodings == (1, 2, 3)
    (model_dir,) = (fleet.cache_dir / "models").iterdir()
    assert {path.name for path in model_dir.iterdir()} == {"config.json", "vocab.txt"}


async def test_heartbeats_tell_what_a_version_took(hub, fleet):
    hub.complete_when_done = False
    await hub.publish(1)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: any(beat.weight_syncs for beat in hub.beats))
    told = len(hub.beats)
    await hub.until(lambda: len(hub.beats) > told + 3)
    hub.complete_when_done = True
    await running
    (sync,) = [sync for beat in hub.beats for sync in beat.weight_syncs]
    assert (sync.weight_version, sync.from_version, sync.manifests) == (1, 0, 1)
    assert sync.fetched_bytes == sum(blob.size for blob in hub.versions[1].blobs)
    stages = (sync.fetch_seconds, sync.decode_seconds, sync.verify_seconds, sync.pause_seconds)
    assert 0 < sum(stages) < sync.total_seconds


async def test_no_work_is_asked_for_before_the_first_version(hub, fleet):
    hub.add_groups(1)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: len(hub.beats) > 3)
    assert hub.loaded_seen == []
    await hub.publish(1)
    await running
    assert set(hub.loaded_seen) == {1}


async def test_a_lost_acknowledgement_is_answered_with_the_same_submission(hub, fleet, unreachable):
    await hub.publish(1)
    hub.add_groups(3)
    hub.fail("submit_reply", unreachable, None, unreachable)
    await fleet.serve()
    assert len(hub.finished) == 3
    assert hub.duplicates == 2


async def test_a_hub_that_is_gone_for_a_while_is_waited_for(hub, fleet, unreachable):
    await hub.publish(1)
    hub.add_groups(3)
    for method in ("lease_work", "submit_results", "heartbeat", "await_version", "get_plan"):
        hub.fail(method, unreachable, unreachable, unreachable)
    await fleet.serve()
    assert len(hub.finished) == 3


async def test_a_hub_that_stays_silent_ends_the_worker_with_its_last_error(hub, fleet):
    def silent(_):
        raise UnreachableError("connection refused")

    hub.before["get_run"] = silent
    with pytest.raises(UnreachableError, match=r"gives up\. Last error: connection refused"):
        await fleet.serve(pacing=Pacing(first_delay=0.001, longest_delay=0.001, patience=0.01))


async def test_a_refused_join_names_both_digests(hub, fleet):
    hub.fail("join", RefusedError("expected abc, got def", "MODEL_MISMATCH"))
    with pytest.raises(RefusedError, match="expected abc, got def"):
        await fleet.serve()


async def test_a_worker_that_the_hub_forgot_joins_again_under_its_boot_id(hub, fleet):
    await hub.publish(1)
    hub.add_groups(2)
    hub.fail("lease_work", RefusedError("join first", "NOT_FOUND"))
    await fleet.serve()
    assert len(hub.joins) == 2
    assert hub.joins[0] == hub.joins[1]
    assert len(hub.finished) == 2


async def test_a_fenced_worker_stops(hub, fleet):
    await hub.publish(1)
    hub.complete_when_done = False
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.loaded_seen)
    hub.epoch = 2
    with pytest.raises(FencedError):
        await running


class PatientEngine(ScriptedEngine):
    """Under version 1 stops after its tenth step until another version is there."""

    async def _pause(self):
        await super()._pause()
        while self.loaded_version == 1 and self.generated_tokens >= 40:
            await super()._pause()


async def test_a_new_version_is_loaded_in_flight_and_named_in_the_spans(hub, fleet):
    fleet.engine_class = PatientEngine
    await hub.publish(1, probe="right")
    hub.add_groups(1, sampling=LONG)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.beats and hub.beats[-1].generated_tokens == 40)
    await hub.publish(2, probe="right")
    await running
    ((batch,),) = hub.finished.values()
    assert [(span.start, span.end, span.weight_version) for span in batch.version_spans] == [
        (0, 10, 1),
        (10, 400, 2),
    ] * 4
    assert hub.probes == [(1, True), (2, True)]


async def test_a_version_that_opens_the_gate_is_asked_with_at_once(hub, fleet):
    hub.complete_when_done = False
    await hub.publish(1)
    running = asyncio.create_task(fleet.serve(pacing=dataclasses.replace(fleet.pacing, lease_wait=30.0)))
    await hub.until(lambda: hub.loaded_seen == [1])
    await hub.publish(2)
    await hub.until(lambda: hub.loaded_seen == [1, 2])
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_a_worker_that_fails_its_probe_card_gets_no_work_until_it_is_readmitted_and_passes(hub, fleet):
    await hub.publish(1, probe=[-9.0, -9.0, -9.0])
    hub.add_groups(2)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.probes == [(1, False)])
    await hub.publish(2, probe="right")
    await hub.until(lambda: hub.probes == [(1, False), (2, True)])
    await hub.until(lambda: len(hub.beats) > 20)
    assert hub.finished == {}
    hub.state = WorkerState.ACTIVE
    await running
    assert hub.probes[-1] == (2, True)
    assert sampling_versions(hub) == {2}


async def test_results_that_finish_while_a_probe_card_is_scored_wait_for_its_verdict(hub, fleet):
    fleet.engine_class = PatientEngine
    await hub.publish(1, probe="right")
    hub.add_groups(1, sampling=LONG)
    reporting, verdict = asyncio.Event(), asyncio.Event()
    report = hub.report_probe

    async def slow_report(worker, result, numerics_id):
        if result.weight_version == 2:
            reporting.set()
            await verdict.wait()
        return await report(worker, result, numerics_id)

    hub.report_probe = slow_report
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.beats and hub.beats[-1].generated_tokens > 0)
    await hub.publish(2, probe=[-9.0, -9.0, -9.0])
    await reporting.wait()
    await hub.until(lambda: hub.beats[-1].generated_tokens == 4 * 400)
    assert hub.finished == {}
    verdict.set()
    await hub.until(lambda: (2, False) in hub.probes)
    await hub.until(lambda: len(hub.beats) > 3)
    assert hub.finished == {}
    hub.lost = list(hub.leased)
    fleet.signals.put_nowait("SIGTERM")
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_a_version_that_does_not_fit_the_model_is_left_out(hub, fleet):
    await hub.publish(1)
    hub.complete_when_done = False
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: 1 in hub.loaded_seen)
    await hub.publish(2, names=("other",))
    hub.add_groups(1)
    await hub.until(lambda: hub.finished)
    await hub.publish(3)
    await hub.until(lambda: 3 in hub.loaded_seen)
    assert 2 not in hub.loaded_seen
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_a_download_that_breaks_goes_on_where_it_stopped(hub, fleet, unreachable):
    hub.complete_when_done = False
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.beats)
    hub.fail("fetch_chunk", unreachable)
    await hub.publish(1)
    await hub.until(lambda: 1 in hub.loaded_seen)
    (blob,) = hub.versions[1].blobs
    assert [offset for digest, offset in hub.fetched if digest == blob.digest] == [0, 4]
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_a_damaged_blob_is_never_loaded_and_fetched_again(hub, fleet):
    hub.add_groups(1)
    await hub.publish(1)
    (blob,) = hub.versions[1].blobs
    right = hub.blobs[blob.digest]
    hub.blobs[blob.digest] = bytes(len(right))
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: sum(digest == blob.digest for digest, _ in hub.fetched) >= 2)
    assert hub.loaded_seen == []
    hub.blobs[blob.digest] = right
    await running
    assert len(hub.finished) == 1


async def test_deltas_are_loaded_as_the_full_copy_would_be(hub, fleet):
    pytest.importorskip("numba", reason="the codec extra is not installed")
    await hub.publish(1, probe="right")
    hub.complete_when_done = False
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: 1 in hub.loaded_seen)
    for version in (2, 3):
        await hub.publish(version, probe="right", delta=True)
        await hub.until(lambda version=version: version in hub.loaded_seen)
    assert hub.probes == [(1, True), (2, True), (3, True)]
    assert hub.held_seen == [0, 1, 2]
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_a_way_that_comes_in_parts_is_gone_to_its_end_before_anything_is_loaded(hub, fleet):
    pytest.importorskip("numba", reason="the codec extra is not installed")
    await hub.publish(1)
    for version in (2, 3):
        await hub.publish(version, probe="right", delta=True)
    hub.longest_plan = 1
    hub.add_groups(1)
    await fleet.serve()
    assert hub.held_seen == [0, 1, 2]
    assert hub.probes == [(3, True)]
    assert set(hub.loaded_seen) == {3}


async def test_a_delta_that_arrives_damaged_is_replaced_by_the_way_from_a_full_copy(hub, fleet):
    pytest.importorskip("numba", reason="the codec extra is not installed")
    await hub.publish(1, probe="right")
    hub.complete_when_done = False
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: 1 in hub.loaded_seen)
    hub.before["get_plan"] = lambda _: damage()

    def damage():
        (blob,) = hub.versions[2].blobs
        right = hub.blobs[blob.digest]
        hub.blobs[blob.digest] = bytes(len(right))
        hub.before["get_plan"] = lambda _: hub.blobs.update({blob.digest: right})

    await hub.publish(2, probe="right", delta=True)
    await hub.until(lambda: 2 in hub.loaded_seen)
    assert hub.probes == [(1, True), (2, True)]
    assert hub.held_seen == [0, 1, 0]
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_an_engine_started_anew_gets_what_the_deltas_led_to(hub, fleet):
    pytest.importorskip("numba", reason="the codec extra is not installed")
    fleet.engine_class = type("Once", (MortalEngine,), {"deaths": 1})
    await hub.publish(1, probe="right")
    await hub.publish(2, probe="right", delta=True)
    hub.add_groups(3)
    await fleet.serve()
    assert len(fleet.engines) == 2
    assert len(hub.finished) == 3
    assert hub.probes == [(2, True), (2, True)]


async def test_a_signal_lets_running_completions_end_and_nothing_new_start(hub, fleet):
    await hub.publish(1)
    hub.add_groups(2, samples=8, sampling=LONG)
    running = asyncio.create_task(fleet.serve(capacity=8))
    await hub.until(lambda: hub.beats and hub.beats[-1].generated_tokens > 0)
    fleet.signals.put_nowait("SIGTERM")
    await running
    assert [lease_id.split(".")[0] for lease_id in hub.finished] == ["g0"]
    assert len(hub.queue) == 1
    assert hub.left == ["SIGTERM arrived"]


async def test_a_second_signal_drops_what_is_running(hub, fleet):
    await hub.publish(1)
    hub.add_groups(1, sampling=ENDLESS)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.beats and hub.beats[-1].generated_tokens > 0)
    fleet.signals.put_nowait("SIGINT")
    fleet.signals.put_nowait("SIGINT")
    await running
    assert hub.finished == {}
    assert hub.left == ["SIGINT arrived"]


async def test_a_signal_before_the_join_ends_the_worker(hub, fleet, unreachable):
    def silent(_):
        raise unreachable

    hub.before["get_run"] = silent
    running = asyncio.create_task(fleet.serve())
    await asyncio.sleep(0)
    fleet.signals.put_nowait("SIGTERM")
    await running
    assert hub.joins == []


async def test_a_worker_waits_for_a_model_file_that_the_hub_has_lost(hub, fleet):
    def lost(call):
        if call == 1:
            raise RefusedError("blob was damaged", "DIGEST_MISMATCH")
        if call == 2:
            raise RefusedError("blob is not stored", "NOT_FOUND")

    def uploading(call):
        if call == 2:
            raise RefusedError("the trainer is still uploading model files", "RUN_NOT_OPEN")

    hub.before.update(fetch_blob=lost, get_run=uploading)
    await hub.publish(1)
    hub.add_groups(1)
    await fleet.serve()
    assert len(hub.finished) == 1
    assert hub.calls["get_run"] == 3


async def test_an_unknown_engine_is_named_before_any_run_is_open(hub, fleet):
    def closed(_):
        raise RefusedError("no trainer has opened a run", "RUN_NOT_OPEN")

    def refuse(name):
        raise ConfigError(f"no engine {name!r}")

    hub.before["get_run"] = closed
    fleet.choose_engine = refuse
    with pytest.raises(ConfigError, match="no engine"):
        await fleet.serve()


async def test_a_drained_worker_finishes_and_leaves(hub, fleet):
    await hub.publish(1)
    hub.complete_when_done = False
    hub.add_groups(1, sampling=LONG)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.leased)
    hub.state = WorkerState.DRAINING
    await running
    assert len(hub.finished) == 1
    assert hub.left == ["the hub drains this worker"]


async def test_a_lost_lease_is_worked_on_no_longer(hub, fleet):
    await hub.publish(1)
    hub.add_groups(1, sampling=ENDLESS)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: hub.leased)
    hub.lost = list(hub.leased)
    hub.leased.clear()
    await running
    assert fleet.engines[0].unfinished_sequences == 0
    assert hub.finished == {}


async def test_heartbeats_name_every_lease_until_its_results_are_acknowledged(hub, fleet, unreachable):
    await hub.publish(1)
    hub.add_groups(1)
    hub.fail("submit_results", *[unreachable] * 5)
    await fleet.serve()
    named = [beat.lease_ids for beat in hub.beats if beat.lease_ids]
    assert named
    assert set(named) == {tuple(hub.finished)}


async def test_refused_results_are_dropped_and_a_worker_whose_results_are_all_refused_gives_up(hub, fleet):
    await hub.publish(1)
    hub.add_groups(30)

    def refuse(_):
        raise RefusedError("log_probs must be finite", "INVALID_FIELD")

    hub.before["submit_results"] = refuse
    with pytest.raises(RefusedError, match="8 submissions in a row"):
        await fleet.serve()


class MortalEngine(ScriptedEngine):
    """Dies at its first completion, as often as `deaths` says."""

    deaths = 1

    async def generate(self, work):
        if type(self).deaths:
            type(self).deaths -= 1
            raise EngineError("the device fell off")
        return await super().generate(work)


async def test_work_of_an_engine_that_died_is_done_by_the_next_one(hub, fleet):
    fleet.engine_class = type("Once", (MortalEngine,), {"deaths": 1})
    await hub.publish(1, probe="right")
    hub.add_groups(3)
    await fleet.serve()
    assert len(fleet.engines) == 2
    assert len(hub.finished) == 3
    assert hub.probes == [(1, True), (1, True)]


async def test_an_engine_that_keeps_dying_ends_the_worker(hub, fleet):
    fleet.engine_class = type("Often", (MortalEngine,), {"deaths": 100})
    await hub.publish(1)
    hub.add_groups(3)
    with pytest.raises(EngineError, match=r"restarts are used up.*the device fell off"):
        await fleet.serve()
    assert len(fleet.engines) == 3
    assert "the device fell off" in hub.left[0]


class PickyEngine(ScriptedEngine):
    async def generate(self, work):
        if work.group_id == "g1":
            raise BackendError("too long for this model")
        return await super().generate(work)


async def test_work_that_the_engine_cannot_do_is_left_to_others(hub, fleet):
    fleet.engine_class = PickyEngine
    hub.complete_when_done = False
    await hub.publish(1)
    hub.add_groups(3)
    running = asyncio.create_task(fleet.serve())
    await hub.until(lambda: len(hub.finished) == 2)
    (left_over,) = hub.leased
    await hub.until(lambda: left_over not in hub.beats[-1].lease_ids)
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_more_is_asked_for_only_when_a_whole_group_fits(hub, fleet):
    await hub.publish(1)
    hub.add_groups(6, samples=4, sampling=LONG)
    asked = []
    lease_work = hub.lease_work

    async def watched(worker, *, free_sequences, **arguments):
        asked.append(free_sequences)
        return await lease_work(worker, free_sequences=free_sequences, **arguments)

    hub.lease_work = watched
    await fleet.serve(capacity=10)
    assert len(hub.finished) == 6
    assert all(free >= 4 for free in asked)


@pytest.mark.parametrize(("ask_ahead", "most"), [(False, 8), (True, 16)])
async def test_a_worker_holds_more_than_its_engine_decodes_only_when_it_asks_ahead(
    hub, fleet, ask_ahead, most
):
    await hub.publish(1)
    hub.add_groups(40, samples=4, sampling=LONG)
    held = []
    lease_work = hub.lease_work

    async def watched(worker, **arguments):
        grant = await lease_work(worker, **arguments)
        held.append(fleet.engines[0].unfinished_sequences + 4 * len(grant.leases))
        return grant

    hub.lease_work = watched
    await fleet.serve(capacity=8, ask_ahead=ask_ahead)
    assert len(hub.finished) == 40
    assert held[0] <= 8
    assert (max(held) > 8) is ask_ahead
    assert max(held) <= most


async def test_the_scratch_directory_is_gone_after_an_orderly_end(hub, fleet):
    await hub.publish(1)
    await fleet.serve()
    assert [path for path in (fleet.cache_dir / "workers").rglob("*") if path.is_file()] == []


def hand_in_together(hub, fleet, *, groups):
    """Groups that all finish while one submission is under way, so that the rest goes out in one call."""
    hub.add_groups(groups)
    return fleet.serve(capacity=4 * groups)


async def test_groups_that_finish_together_share_a_call(hub, fleet):
    await hub.publish(1)
    await hand_in_together(hub, fleet, groups=20)
    assert len(hub.finished) == 20
    assert max(hub.batch_sizes) > 1
    assert hub.duplicates == 0


async def test_one_of_several_that_is_refused_does_not_hold_up_the_others(hub, fleet):
    await hub.publish(1)
    hub.complete_when_done = False
    refused = RefusedError("log_probs must be finite", "INVALID_FIELD")
    hub.fail("submit_results", refused)
    running = asyncio.create_task(hand_in_together(hub, fleet, groups=20))
    await hub.until(lambda: len(hub.finished) == 19)
    assert hub.calls["submit_results"] == 20
    fleet.signals.put_nowait("SIGTERM")
    await running


async def test_one_of_several_that_the_disk_had_no_room_for_is_handed_in_again(hub, fleet):
    await hub.publish(1)
    full = RefusedError("the disk is full", "STORAGE_FULL")
    hub.fail("submit_results", full, full, full)
    await hand_in_together(hub, fleet, groups=20)
    assert len(hub.finished) == 20


async def test_several_that_a_hub_refuses_as_a_whole_are_handed_in_one_by_one(hub, fleet):
    def refuse(_):
        raise RefusedError("too much at once", "TOO_LARGE")

    await hub.publish(1)
    hub.before["submit_batch"] = refuse
    await hand_in_together(hub, fleet, groups=20)
    assert len(hub.finished) == 20
