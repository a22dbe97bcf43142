"""What is kept of old steps."""

import dataclasses

import pytest

from hetero_rl.errors import InvalidMessageError
from hetero_rl.hub.handlers.queue import take_evaluation
from hetero_rl.hub.handlers.retention import commit_checkpoint, prune_some, rank, slice_batch
from hetero_rl.hub.stores.records import StoredBatch
from hetero_rl.wire.columns import UInt8Bytes, float32_column, float32_view, int32_view
from hetero_rl.wire.messages import GenerateWork, Lease, Purpose


def checkpoint(hub, step, oldest):
    hub(commit_checkpoint, 1, step, oldest)
    while hub(prune_some):
        pass


@pytest.fixture
def trained(hub):
    """Two trained steps of two groups of two completions."""
    worker = hub.open()
    hub.enqueue(0, 1, 2, 3)
    hub.generate(worker)
    hub.train(1, log_probs=float32_column([float(-number) for number in range(8)]))
    hub.train(2)
    return hub


def keep(hub, size):
    hub.context.settings = dataclasses.replace(hub.settings, retained_sequences=size)


def test_only_steps_up_to_the_oldest_checkpoint_are_pruned(trained):
    checkpoint(trained, 2, 1)
    assert trained.store.batches("g0") == ()
    assert len(trained.store.batches("g2")) == 1
    assert trained.store.commit_of(1).log_probs is None


def test_scalars_stay(trained):
    checkpoint(trained, 2, 2)
    assert len(trained.store.sequences("g0")) == 2
    assert len(trained.store.commit_of(1).outcomes) == 4


def test_a_reservoir_large_enough_keeps_every_sequence(trained):
    checkpoint(trained, 2, 2)
    assert len(trained.store.retained_ranks()) == 8
    assert trained.store.prompt_group("g0").payload == b"answer"


def test_the_reservoir_keeps_the_lowest_ranks_of_all(trained):
    keep(trained, 3)
    checkpoint(trained, 2, 1)
    checkpoint(trained, 2, 2)
    ranks = sorted(rank("run", f"g{group}", index) for group in range(4) for index in range(2))
    assert trained.store.retained_ranks() == tuple(ranks[:3])


def test_no_reservoir_keeps_no_tokens(trained):
    keep(trained, 0)
    checkpoint(trained, 2, 2)
    assert trained.store.retained_ranks() == ()
    assert trained.store.prompt_group("g0").prompt_token_ids == b""


def test_ranks_are_spread_evenly():
    # Of 4000 sequences about a quarter has a rank in the lowest quarter of 62 bits: 1000, give or take 4.4 sigma.
    low = sum(rank("run", f"g{number}", 0) < 2**60 for number in range(4000))
    assert 880 < low < 1120


def test_a_sequence_is_cut_out_with_its_own_parts(messages):
    work = GenerateWork(
        group_id="g0",
        purpose=Purpose.TRAIN,
        prompt_token_ids=b"",
        sample_indices=(0, 1),
        sampling=messages.sampling,
    )
    lease = Lease(lease_id="l", attempt=0, time_to_live=1.0, min_weight_version=1, work=work)
    batch = messages.batch(lease, action_mask=UInt8Bytes(b"\x01\x00\x01\x01"))
    trainer = {("g0", 1): float32_column([-3.0, -4.0])}
    first, second = slice_batch(StoredBatch(batch, "w1", "cpu"), "run", trainer)
    assert list(int32_view(first.token_ids)) == [10, 2]
    assert first.trainer_log_probs is None
    assert list(int32_view(second.token_ids)) == [11, 2]
    assert list(float32_view(second.log_probs)) == [-2.0, -0.5]
    assert second.action_mask == b"\x01\x01"
    assert list(float32_view(second.trainer_log_probs)) == [-3.0, -4.0]


def test_evaluation_taken_before_the_oldest_checkpoint_is_pruned_and_never_retained(hub):
    worker = hub.open()
    hub.enqueue(0, 1, 2, 3)
    hub.enqueue(0, purpose=Purpose.EVALUATION)
    hub.generate(worker, free=99)
    hub(take_evaluation, 1, ["e0"])  # before step 1
    hub.train(1)
    checkpoint(hub, 1, 0)
    assert len(hub.store.batches("e0")) == 1
    checkpoint(hub, 1, 1)
    assert hub.store.batches("e0") == ()
    ranks = {rank("run", group, index) for group in ("g0", "g1") for index in (0, 1)}
    assert set(hub.store.retained_ranks()) == ranks


@pytest.mark.parametrize(("step", "oldest"), [(3, 1), (1, 2)])
def test_a_checkpoint_that_cannot_be_is_refused(trained, step, oldest):
    with pytest.raises(InvalidMessageError, match="does not fit 2 committed steps"):
        trained(commit_checkpoint, 1, step, oldest)


def test_pruning_never_goes_back(trained):
    checkpoint(trained, 2, 2)
    checkpoint(trained, 2, 1)
    assert trained.store.run().pruned_step == 2
