"""What becomes of a submission."""

import dataclasses

import pytest

from hetero_rl.errors import FencedError, InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.fleet import list_workers, run_status
from hetero_rl.hub.handlers.leasing import expire_leases
from hetero_rl.hub.handlers.results import submit_results
from hetero_rl.hub.handlers.retention import commit_checkpoint, prune_some
from hetero_rl.wire.columns import float32_column
from hetero_rl.wire.messages import Purpose, ScoreBatch, VersionSpan, WorkerIdentity


@pytest.fixture
def worker(hub):
    worker = hub.open()
    hub.enqueue(0, 1)
    return worker


def test_a_complete_group_is_finished(hub, worker):
    (lease,) = hub.lease(worker, free=2).leases
    receipt = hub.submit(worker, lease)
    assert not receipt.duplicate
    assert receipt.credits == 8
    assert hub(run_status).training.finished == 1
    assert hub.store.lease(lease.lease_id) is None


def test_a_group_may_come_in_parts(hub, worker, messages):
    (lease,) = hub.lease(worker, free=2).leases
    hub.submit(worker, lease, final=False, results=messages.batch(lease, indices=(1,)))
    assert hub(run_status).training.leased == 1
    hub.submit(worker, lease, results=messages.batch(lease, indices=(0,)))
    assert hub(run_status).training.finished == 1


def test_the_same_submission_is_acknowledged_again_and_stored_once(hub, worker, messages):
    (lease,) = hub.lease(worker, free=2).leases
    submission = messages.submission(worker, 1, lease)
    assert not hub(submit_results, submission).duplicate
    assert hub(submit_results, submission).duplicate
    assert len(hub.store.batches("g0")) == 1
    (summary,) = hub(list_workers, include_gone=False)
    assert summary.completions == 2


def test_a_repetition_is_recognised_after_its_group_was_trained_and_pruned(hub, worker, messages):
    leases = hub.lease(worker).leases
    submissions = [messages.submission(worker, number, lease) for number, lease in enumerate(leases)]
    for submission in submissions:
        hub(submit_results, submission)
    hub.train(1)
    hub(commit_checkpoint, 1, 1, 1)
    while hub(prune_some):
        pass
    assert hub.store.batches("g0") == ()
    assert hub(submit_results, submissions[0]).duplicate


def test_late_results_of_a_lost_lease_are_refused(hub, worker):
    (lease,) = hub.lease(worker, free=2).leases
    hub.clock.advance(61)
    hub(expire_leases)
    with pytest.raises(RefusedError) as caught:
        hub.submit(worker, lease)
    assert caught.value.reason == "LEASE_LOST"


def test_results_for_somebody_elses_lease_are_refused(hub, worker):
    (lease,) = hub.lease(worker, free=2).leases
    other = hub.join("w2")
    with pytest.raises(RefusedError) as caught:
        hub.submit(other, lease)
    assert caught.value.reason == "LEASE_LOST"


def test_an_older_process_under_the_name_is_fenced(hub, worker):
    (lease,) = hub.lease(worker, free=2).leases
    newer = hub.join("w1", boot_id="second-boot")
    assert newer.worker_epoch == 2
    with pytest.raises(FencedError):
        hub.submit(worker, lease)


def test_a_stranger_is_told_to_join(hub, worker):
    (lease,) = hub.lease(worker, free=2).leases
    with pytest.raises(RefusedError) as caught:
        hub.submit(WorkerIdentity("nobody", 1), lease)
    assert caught.value.reason == "NOT_FOUND"


def wrong(messages, lease):
    """Changes of a batch that nobody may get away with, and the field that the refusal names."""
    batch = messages.batch(lease)
    return {
        "nan": ({"log_probs": float32_column([float("nan"), -1, -1, -1])}, "log_probs"),
        "positive log-probability": ({"log_probs": float32_column([0.1, -1, -1, -1])}, "log_probs"),
        "wrong length": ({"lengths": (2, 3)}, "token_ids"),
        "no log-probabilities": ({"log_probs": None}, "log_probs"),
        "unknown sample": ({"sample_indices": (0, 7)}, "sample_indices"),
        "unknown version": (
            {"version_spans": (VersionSpan(0, 0, 2, 99), VersionSpan(1, 0, 2, 99))},
            "version_spans",
        ),
        "other group": ({"group_id": "g1"}, "group_id"),
        "other numerics": ({"numerics_id": "0" * 16}, "numerics_id"),
    }, batch


@pytest.mark.parametrize(
    "case",
    [
        "nan",
        "positive log-probability",
        "wrong length",
        "no log-probabilities",
        "unknown sample",
        "unknown version",
        "other group",
        "other numerics",
    ],
)
def test_a_bad_batch_is_refused_and_nothing_of_it_is_stored(hub, worker, messages, case):
    (lease,) = hub.lease(worker, free=2).leases
    cases, batch = wrong(messages, lease)
    changes, field = cases[case]
    with pytest.raises(InvalidMessageError) as caught:
        hub.submit(worker, lease, results=dataclasses.replace(batch, **changes))
    assert field in caught.value.field
    assert hub.store.batches("g0") == ()
    assert not hub.submit(worker, lease).duplicate


def test_scores_do_not_answer_a_lease_of_completions(hub, worker, messages):
    (lease,) = hub.lease(worker, free=2).leases
    scores = ScoreBatch(
        score_id="s",
        log_probs=float32_column([-1]),
        weight_version=1,
        numerics_id=messages.numerics.numerics_id,
    )
    with pytest.raises(InvalidMessageError, match="results"):
        hub.submit(worker, lease, results=scores)


def test_tokens_of_older_weights_than_leased_are_refused(hub, worker, messages):
    hub.publish(2, step=0)
    (lease,) = hub.lease(worker, version=2, free=2).leases
    with pytest.raises(InvalidMessageError, match="version"):
        hub.submit(worker, lease, results=messages.batch(lease, version=1))


def test_parts_that_the_final_one_overtook_are_still_taken(hub, worker, messages):
    (lease,) = hub.lease(worker, free=2).leases
    hub.submit(worker, lease, final=True, results=messages.batch(lease, indices=(1,)))
    hub.submit(worker, lease, final=False, results=messages.batch(lease, indices=(0,)))
    assert hub(run_status).training.finished == 1


def test_samples_that_never_come_after_the_final_part_are_soon_queued_again(hub, worker, messages):
    (lease,) = hub.lease(worker, free=2).leases
    hub.submit(worker, lease, results=messages.batch(lease, indices=(0,)))
    hub.clock.advance(5)
    hub(expire_leases)
    again = hub.lease(worker, free=1).leases[0]
    assert (again.work.group_id, again.work.sample_indices) == ("g0", (1,))


def test_a_group_is_as_old_as_its_oldest_token(hub, worker, messages):
    hub.publish(2, step=1)
    (lease,) = hub.lease(worker, free=2).leases
    spans = (VersionSpan(0, 0, 1, 1), VersionSpan(0, 1, 2, 2), VersionSpan(1, 0, 2, 2))
    hub.submit(worker, lease, results=messages.batch(lease, version_spans=spans))
    assert hub.store.group("g0").oldest_step == 0
    rows = hub.store.sequences("g0")
    assert [(row.oldest_version, row.newest_version, row.oldest_step, row.newest_step) for row in rows] == [
        (1, 2, 0, 1),
        (2, 2, 1, 1),
    ]


def test_greedy_evaluation_needs_no_log_probabilities(hub, worker, messages):
    hub.enqueue(0, purpose=Purpose.EVALUATION)
    (lease,) = hub.lease(worker, free=2).leases
    hub.submit(worker, lease, results=messages.batch(lease, log_probs=None))
    assert hub(run_status).evaluation.finished == 1
