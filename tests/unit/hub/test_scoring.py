"""Given tokens that chosen workers score."""

import dataclasses

import pytest

from hetero_rl.errors import InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.leasing import expire_leases
from hetero_rl.hub.handlers.results import submit_results
from hetero_rl.hub.handlers.scoring import get_score, request_calibration
from hetero_rl.hub.handlers.workers import quarantine
from hetero_rl.wire.columns import Float32Bytes, float32_column, int32_column
from hetero_rl.wire.messages import ProbeCard, ScoreBatch, ScoreWork

CARD = ProbeCard(
    lengths=(3, 2), token_ids=int32_column([1, 2, 3, 4, 5]), log_probs=Float32Bytes(b""), tolerance=1.0
)


def scores(lease, messages, values=(-1.0, -2.0, -3.0), **changes):
    batch = ScoreBatch(
        score_id=lease.work.score_id,
        log_probs=float32_column(values),
        weight_version=lease.work.weight_version,
        numerics_id=messages.numerics.numerics_id,
    )
    return dataclasses.replace(batch, **changes)


@pytest.fixture
def worker(hub):
    return hub.open()


def test_a_card_is_leased_scored_and_read(hub, worker, messages):
    (score_id,) = hub(request_calibration, (), CARD, 1)
    assert hub(get_score, score_id).scores is None
    (lease,) = hub.lease(worker).leases
    assert lease.work == ScoreWork(
        score_id=score_id, lengths=(3, 2), token_ids=CARD.token_ids, weight_version=1
    )
    assert not hub.submit(worker, lease, results=scores(lease, messages)).duplicate
    status = hub(get_score, score_id)
    assert status.worker_name == "w1"
    assert status.scores == scores(lease, messages)
    assert hub.store.leases() == ()


def test_every_worker_of_the_backends_is_asked_once(hub, worker):
    hub.join("w2", backend="rocm")
    hub.join("w3", backend="ascend")
    ids = hub(request_calibration, ("rocm", "ascend"), CARD, 1)
    assert [hub(get_score, one).worker_name for one in ids] == ["w2", "w3"]
    assert len(set(hub(request_calibration, (), CARD, 1)) | set(ids)) == 5


def test_the_same_scores_again_are_acknowledged_and_stored_once(hub, worker, messages):
    (score_id,) = hub(request_calibration, (), CARD, 1)
    (lease,) = hub.lease(worker).leases
    submission = messages.submission(worker, 7, lease, results=scores(lease, messages))
    assert not hub(submit_results, submission).duplicate
    assert hub(submit_results, submission).duplicate
    assert hub(get_score, score_id).scores is not None


def test_a_score_waits_for_its_version_and_does_not_hold_up_other_work(hub, worker):
    hub.publish(2)
    hub(request_calibration, (), CARD, 2)
    hub.enqueue(0)
    (lease,) = hub.lease(worker, version=1).leases
    assert lease.work.group_id == "g0"
    (lease,) = hub.lease(worker, version=2).leases
    assert lease.work.weight_version == 2


def test_a_version_that_the_worker_has_passed_is_never_scored(hub, worker):
    hub.publish(2)
    (score_id,) = hub(request_calibration, (), CARD, 1)
    assert hub.lease(worker, version=2).leases == ()
    assert "holds version 2 already" in hub(get_score, score_id).failure


def test_a_lost_lease_is_given_again_three_times_at_most(hub, worker):
    (score_id,) = hub(request_calibration, (), CARD, 1)
    for attempt in range(3):
        (lease,) = hub.lease(worker).leases
        assert lease.attempt == attempt
        hub.clock.advance(61)
        hub(expire_leases)
    assert hub.lease(worker).leases == ()
    assert "3 times without results" in hub(get_score, score_id).failure


def test_the_score_of_a_worker_that_starts_again_is_leased_to_its_next_life(hub, worker):
    hub(request_calibration, (), CARD, 1)
    assert hub.lease(worker).leases
    again = hub.join("w1", boot_id="another")
    assert [lease.attempt for lease in hub.lease(again).leases] == [1]


@pytest.mark.parametrize("change", [{"values": (-1.0,)}, {"weight_version": 2}, {"numerics_id": "other"}])
def test_scores_that_do_not_answer_the_lease_are_refused(hub, worker, messages, change):
    hub(request_calibration, (), CARD, 1)
    (lease,) = hub.lease(worker).leases
    with pytest.raises(InvalidMessageError):
        hub.submit(worker, lease, results=scores(lease, messages, **change))


def test_completions_for_a_score_are_refused(hub, worker, messages):
    hub.enqueue(0)
    hub(request_calibration, (), CARD, 1)
    score, group = hub.lease(worker).leases
    with pytest.raises(InvalidMessageError, match="the lease is of ScoreWork"):
        hub.submit(worker, score, results=messages.batch(group))


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ({"lengths": (1,), "token_ids": int32_column([1])}, "at least 2"),
        ({"lengths": (2,), "token_ids": int32_column([1, 100])}, "holds 100"),
        ({"lengths": (2**20,), "token_ids": int32_column([1] * 2**20)}, "ask in parts"),
    ],
)
def test_a_card_that_no_worker_could_score_is_refused(hub, worker, card, problem):
    hub.settings = dataclasses.replace(hub.settings, max_message_bytes=2**20)
    hub.restart()
    with pytest.raises(InvalidMessageError, match=problem):
        hub(request_calibration, (), dataclasses.replace(CARD, **card), 1)


def test_what_nobody_can_do_is_refused_with_the_reason(hub, worker):
    with pytest.raises(RefusedError, match="no active worker of backend rocm can score"):
        hub(request_calibration, ("cpu", "rocm"), CARD, 1)
    with pytest.raises(RefusedError, match="weight version 5 is not there"):
        hub(request_calibration, (), CARD, 5)
    with pytest.raises(RefusedError, match="no score is called"):
        hub(get_score, "s000009")
    hub(quarantine, "w1", "why")
    with pytest.raises(RefusedError, match="no active worker"):
        hub(request_calibration, (), CARD, 1)
