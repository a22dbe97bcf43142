"""Opening, resuming and closing the run."""

import pytest

from hetero_rl.errors import InvalidMessageError, RefusedError
from hetero_rl.hub.handlers.fleet import run_status
from hetero_rl.hub.handlers.queue import take_batch
from hetero_rl.hub.handlers.retention import commit_checkpoint
from hetero_rl.hub.handlers.runs import close_run, describe_run, open_run
from hetero_rl.hub.handlers.versions import publish_version
from hetero_rl.wire.messages import ModelDigests, ModelFile, NoWorkReason, Purpose


def resume(hub, messages, step, **changes):
    return hub(open_run, messages.run_request(resume_step=step, **changes))


@pytest.fixture
def three_steps(hub):
    """Steps 1 to 3 trained, step 4 taken, all under versions of their own."""
    worker = hub.open()
    hub.enqueue(*range(8))
    for step in (1, 2, 3):
        hub.generate(worker, version=step)
        hub.train(step)
        hub.publish(step + 1, step=step)
    hub.generate(worker, version=4)
    hub(take_batch, 1, 4)
    return hub


def test_a_new_run_starts_at_nothing(hub, messages):
    grant = hub(open_run, messages.run_request())
    assert grant.trainer_epoch == 1
    assert grant.latest_weight_version == 0
    assert not grant.latest_state_digest
    assert grant.next_train_ordinal == 0
    assert grant.credits == 8


def test_a_resumed_run_says_where_it_stands(three_steps, messages):
    grant = resume(three_steps, messages, 3)
    assert grant.trainer_epoch == 2
    assert grant.latest_weight_version == 4
    assert grant.latest_state_digest == messages.manifest(4).state_digest
    assert grant.next_train_ordinal == 8


def test_steps_after_the_checkpoint_get_the_same_batches_again(three_steps, messages):
    resume(three_steps, messages, 1)
    assert three_steps(run_status).step == 1
    assert three_steps(take_batch, 2, 2) == ("g2", "g3")
    three_steps.train(2, epoch=2)
    three_steps.train(3, epoch=2)
    assert three_steps(take_batch, 2, 4) == ("g6", "g7")


def test_abandoned_commits_stay_and_do_not_count(three_steps, messages):
    resume(three_steps, messages, 1)
    assert three_steps.store.commit_of(1) is not None
    assert three_steps.store.commit_of(2) is None
    three_steps.train(2, epoch=2)
    assert three_steps.store.commit_of(2).trainer_epoch == 2


def test_nothing_starts_under_weights_of_abandoned_steps(three_steps, messages):
    resume(three_steps, messages, 1)
    worker = three_steps.join()
    three_steps.enqueue(8, epoch=2)
    # Version 4 has 3 steps, but not of this history; group 8 belongs to step 5 and needs 3 steps.
    assert three_steps.lease(worker, version=4).no_work_reason is NoWorkReason.STALENESS_GATE
    three_steps.publish(5, step=3, epoch=2)
    assert three_steps.lease(worker, version=4).no_work_reason is NoWorkReason.WEIGHTS_TOO_OLD
    assert len(three_steps.lease(worker, version=5).leases) == 1


def test_leases_under_abandoned_weights_end(three_steps, messages):
    worker = three_steps.join()
    three_steps.enqueue(8)
    assert len(three_steps.lease(worker, version=4).leases) == 1
    resume(three_steps, messages, 1)
    assert three_steps.store.leases() == ()
    assert three_steps(run_status).training.queued == 1


def test_resuming_from_the_last_commit_leaves_leases_alone(three_steps, messages):
    worker = three_steps.join()
    three_steps.enqueue(8)
    three_steps.lease(worker, version=4)
    resume(three_steps, messages, 3)
    assert len(three_steps.store.leases()) == 1


def test_a_checkpoint_ahead_of_the_last_commit_counts_as_trained(three_steps, messages):
    # The trainer died between its checkpoint of step 4 and the commit.
    resume(three_steps, messages, 4)
    assert three_steps(run_status).step == 4
    assert three_steps.store.commit_of(4).outcomes == ()
    with pytest.raises(InvalidMessageError):
        three_steps(take_batch, 2, 4)


def test_versions_never_go_back(three_steps, messages):
    resume(three_steps, messages, 1)
    with pytest.raises(InvalidMessageError, match="not above the latest, 4"):
        three_steps(publish_version, 2, messages.manifest(3, step=1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run_id": "other"}, "WRONG_RUN"),
        ({"groups_per_step": 3}, "INCOMPATIBLE"),
        ({"max_lag": 0}, "INCOMPATIBLE"),
        ({"model_digests": ModelDigests("a" * 64, "b" * 64)}, "MODEL_MISMATCH"),
        ({"resume_step": 5}, "INCOMPATIBLE"),
    ],
)
def test_what_cannot_be_the_same_run_is_refused_and_fences_nobody(three_steps, messages, changes, reason):
    with pytest.raises(RefusedError) as caught:
        three_steps(open_run, messages.run_request(**{"resume_step": 3, **changes}))
    assert caught.value.reason == reason
    assert three_steps(take_batch, 1, 4) == ("g6", "g7")


def test_a_larger_lag_is_allowed_on_resume(three_steps, messages):
    resume(three_steps, messages, 3, max_lag=5)
    assert three_steps(run_status).max_lag == 5


def test_a_checkpoint_behind_what_was_pruned_is_refused(three_steps, messages):
    three_steps(commit_checkpoint, 1, 3, 2)
    with pytest.raises(RefusedError, match="pruned"):
        resume(three_steps, messages, 1)
    resume(three_steps, messages, 2)


def test_an_empty_journal_cannot_be_resumed(hub, messages):
    with pytest.raises(RefusedError, match="journal is empty"):
        resume(hub, messages, 3)


def test_a_closed_run_can_be_opened_again(three_steps, messages):
    three_steps(close_run, 1, complete=False)
    with pytest.raises(RefusedError):
        three_steps(describe_run)
    assert not three_steps(run_status).trainer_connected
    resume(three_steps, messages, 3)
    assert three_steps(describe_run).run_id == "run"
    assert three_steps(run_status).trainer_connected


def test_workers_wait_for_the_files_of_the_model(hub, messages):
    file = ModelFile("config.json", messages.blob(7))
    hub(open_run, messages.run_request(model_files=(file,)))
    with pytest.raises(RefusedError, match=r"config\.json") as caught:
        hub(describe_run)
    assert caught.value.reason == "RUN_NOT_OPEN"
    hub.upload(7)
    assert hub(describe_run).model_files == (file,)


def test_a_description_names_what_the_trainer_opened_the_run_with(hub, messages):
    hub.open()
    description = hub(describe_run)
    request = messages.run_request()
    for field in ("run_id", "model_digests", "sampling", "limits"):
        assert getattr(description, field) == getattr(request, field)
    assert description.latest_weight_version == 1


def test_a_closed_run_takes_results_and_gives_no_work(three_steps):
    worker = three_steps.join()
    three_steps.enqueue(8, 9)
    (lease,) = three_steps.lease(worker, version=4, free=2).leases
    three_steps(close_run, 1, complete=False)
    assert three_steps.lease(worker, version=4).no_work_reason is NoWorkReason.QUEUE_EMPTY
    assert not three_steps.submit(worker, lease, results=three_steps.messages.batch(lease, 4)).duplicate


def test_leases_under_weights_published_before_a_commit_that_never_came_end(hub, messages):
    # The trainer published version 2 of step 1 and died before it committed step 1.
    worker = hub.open()
    hub.enqueue(0, 1, 2)
    hub.lease(worker, free=2)
    hub.publish(2, step=1)
    hub.lease(worker, version=2, free=2)
    resume(hub, messages, 0)
    assert [lease.lease_id for lease in hub.store.leases()] == ["g0.0"]


def test_nobody_is_sent_back_to_an_older_version(three_steps, messages):
    resume(three_steps, messages, 1)
    worker = three_steps.join()
    three_steps.enqueue(0, epoch=2, purpose=Purpose.EVALUATION)
    assert three_steps.lease(worker, version=4).no_work_reason is not NoWorkReason.WEIGHTS_TOO_OLD
    three_steps.publish(5, step=1, epoch=2)
    grant = three_steps.lease(worker, version=4)
    assert (grant.no_work_reason, grant.min_weight_version) == (NoWorkReason.WEIGHTS_TOO_OLD, 5)
