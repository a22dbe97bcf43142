"""What every store of the hub does, on disk or in memory. A new store joins by adding itself to `STORES`."""

import contextlib
import dataclasses
import sqlite3

import pytest

from hetero_rl.errors import DamagedError, DiskFullError, StorageError
from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.memory_store import MemoryStore
from hetero_rl.hub.stores.records import (
    GroupState,
    LeaseRow,
    ProbeRow,
    RetainedSequence,
    RunRecord,
    RunState,
    SequenceRow,
    StepCommit,
    SubmissionId,
    WorkerRow,
)
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.wire.columns import UInt8Bytes, float32_column, int32_column
from hetero_rl.wire.messages import (
    BlobReference,
    Capabilities,
    DataType,
    Disposition,
    FinishReason,
    JoinRequest,
    Limits,
    ModelDigests,
    NumericsRecord,
    ProbeCard,
    ProbeResult,
    PromptGroup,
    Purpose,
    RoutedExperts,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    TensorEntry,
    TrajectoryBatch,
    VersionSpan,
    WeightEncoding,
    WeightManifest,
    WorkerState,
)

SAMPLING = SamplingParameters(max_new_tokens=8, stop_token_ids=(2, 3), seed=2**63)
RUN = RunRecord(
    request=RunRequest(
        run_id="run",
        groups_per_step=2,
        max_lag=1,
        total_steps=10,
        model_digests=ModelDigests("c" * 64, "d" * 64),
        model_files=(),
        sampling=SAMPLING,
        limits=Limits(
            max_message_bytes=2**20,
            max_prompt_tokens=16,
            max_completion_tokens=8,
            max_group_size=4,
            vocabulary_size=100,
        ),
        config_json='{"a": "ä"}',
        software_version="0",
    ),
    trainer_epoch=1,
    state=RunState.OPEN,
)
JOIN = JoinRequest(
    run_id="run",
    worker_name="w1",
    boot_id="boot",
    backend="cpu",
    software_version="0",
    capabilities=Capabilities(
        max_concurrent_sequences=8,
        max_sequence_tokens=64,
        scoring=True,
        in_flight_update=True,
        processed_log_probs=False,
    ),
    numerics=NumericsRecord(
        engine="scripted",
        engine_version="1",
        torch_version="2",
        device_vendor="cpu",
        device_name="test",
        driver_version="",
        runtime_version="",
        data_type="float32",
        attention_backend="none",
        log_probs_mode="raw",
        knobs={"threads": "1"},
    ),
    model_digests=ModelDigests("c" * 64, "d" * 64),
)
STORES = ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.sqlite")
    store.begin()
    yield store
    store.rollback()
    store.close()


@pytest.fixture
def sqlite_path(tmp_path):
    return tmp_path / "journal.sqlite"


def prompt(group_id="g0", ordinal=0, purpose=Purpose.TRAIN):
    return PromptGroup(
        group_id=group_id,
        ordinal=ordinal,
        prompt_token_ids=int32_column([5, 6]),
        group_size=2,
        sampling=SAMPLING,
        purpose=purpose,
        payload=b"\x00answer",
        min_weight_version=3,
    )


def trajectories(group_id="g0", **changes):
    batch = TrajectoryBatch(
        group_id=group_id,
        sample_indices=(0, 1),
        lengths=(2, 1),
        token_ids=int32_column([11, 2, 2]),
        log_probs=float32_column([-0.5, -0.25, -2.0]),
        version_spans=(VersionSpan(0, 0, 1, 3), VersionSpan(0, 1, 2, 4), VersionSpan(1, 0, 1, 4)),
        finish_reasons=(FinishReason.STOP, FinishReason.LENGTH),
        numerics_id="n",
        generation_seconds=0.5,
    )
    return dataclasses.replace(batch, **changes)


def sequence(group_id="g0", sample_index=0):
    return SequenceRow(
        group_id=group_id,
        sample_index=sample_index,
        length=2 - sample_index,
        finish_reason=FinishReason(1 + sample_index),
        oldest_version=3,
        newest_version=4,
        oldest_step=2,
        newest_step=3,
    )


def submit(store, number=1, group_id="g0", batch=None):
    key = SubmissionId("w1", 1, number)
    rows = [sequence(group_id, index) for index in (0, 1)]
    store.add_submission(key, "lease", "cpu", batch or trajectories(group_id), rows)
    return key


def outcome(group_id="g0", sample_index=0, **changes):
    row = SequenceOutcome(
        group_id=group_id,
        sample_index=sample_index,
        reward=1.0,
        advantage=-0.5,
        log_importance_ratio=0.1,
        coefficient=0.9,
        mean_absolute_gap=0.01,
        max_absolute_gap=0.5,
        lag=1,
        disposition=Disposition.MASKED,
        chip_log_ratio=0.2,
    )
    return dataclasses.replace(row, **changes)


def commit(step, **changes):
    row = StepCommit(step=step, trainer_epoch=1, committed_at=5.0, outcomes=(outcome(),), log_probs=b"abcd")
    return dataclasses.replace(row, **changes)


def manifest(version, step=0):
    return WeightManifest(
        version=version,
        step=step,
        encoding=WeightEncoding.FULL_RAW,
        tensors=(
            TensorEntry(
                name="t",
                data_type=DataType.BFLOAT16,
                shape=(2, 3),
                digest="e" * 64,
                blob_index=0,
                offset=0,
                size=12,
                tied_names=("u",),
            ),
        ),
        blobs=(BlobReference("f" * 64, 12),),
        state_digest="s",
        probe_card=ProbeCard(
            lengths=(2,),
            token_ids=int32_column([1, 2]),
            log_probs=float32_column([-1.0]),
            tolerance=0.1,
        ),
    )


class TestTransactions:
    def test_reads_see_the_open_transaction(self, store):
        store.put_run(RUN)
        assert store.run() == RUN

    def test_a_rollback_leaves_what_the_last_commit_left(self, store):
        store.add_group(prompt("g0"))
        assert store.commit()
        store.begin()
        store.add_group(prompt("g1", 1))
        store.rollback()
        store.begin()
        assert store.group("g0") is not None
        assert store.group("g1") is None

    def test_a_failed_nested_part_is_undone_alone(self, store):
        store.count("before")
        with contextlib.suppress(KeyError), store.nested():
            store.count("inside")
            raise KeyError
        with store.nested():
            store.count("after")
        assert store.counters() == {"after": 1, "before": 1}

    def test_a_commit_without_writes_says_so(self, store):
        store.commit()
        store.begin()
        store.run()
        assert not store.commit()
        store.begin()

    def test_a_rollback_without_a_transaction_is_harmless(self, store):
        store.commit()
        store.rollback()
        store.begin()

    def test_a_write_probe_changes_nothing_that_is_remembered(self, store):
        store.probe_write()
        assert store.run() is None
        assert store.counters() == {}


class TestGroups:
    def test_a_group_comes_back_as_it_was_enqueued(self, store):
        store.add_group(prompt())
        assert store.prompt_group("g0") == prompt()
        row = store.group("g0")
        assert (row.state, row.step, row.stored, row.min_weight_version) == (GroupState.QUEUED, 0, 0, 3)

    def test_an_unknown_group_is_none(self, store):
        assert store.group("nobody") is None
        with pytest.raises(ConflictError, match="nobody"):
            store.prompt_group("nobody")

    def test_a_known_group_is_not_added_again(self, store):
        store.add_group(prompt())
        with pytest.raises(ConflictError), store.nested():
            store.add_group(prompt())

    def test_rows_of_unknown_groups_cannot_be_replaced(self, store):
        store.add_group(prompt())
        row = dataclasses.replace(store.group("g0"), group_id="nobody")
        with pytest.raises(ConflictError, match="nobody"):
            store.put_group(row)

    def test_the_queue_is_in_order_of_ordinals_by_purpose(self, store):
        for ordinal in (2, 0, 1):
            store.add_group(prompt(f"g{ordinal}", ordinal))
        store.add_group(prompt("e0", 0, Purpose.EVALUATION))
        queued = store.queued_groups(Purpose.TRAIN, 2)
        assert [row.group_id for row in queued] == ["g0", "g1"]
        assert [row.group_id for row in store.queued_groups(Purpose.EVALUATION, 9)] == ["e0"]

    def test_a_leased_group_is_not_queued(self, store):
        store.add_group(prompt())
        store.put_group(dataclasses.replace(store.group("g0"), state=GroupState.LEASED, attempts=1))
        assert store.queued_groups(Purpose.TRAIN, 9) == ()
        assert store.group("g0").attempts == 1

    def test_steps_keep_their_groups(self, store):
        for ordinal in (1, 0, 2):
            store.add_group(prompt(f"g{ordinal}", ordinal))
        store.add_group(prompt("e0", 0, Purpose.EVALUATION))
        for group_id in ("g0", "g1"):
            store.put_group(dataclasses.replace(store.group(group_id), step=4))
        assert [row.group_id for row in store.groups_of_step(4)] == ["g0", "g1"]
        assert [row.group_id for row in store.unassigned_training_groups()] == ["g2"]
        assert store.last_assigned_step() == 4

    def test_a_taken_evaluation_group_does_not_count_as_a_step(self, store):
        store.add_group(prompt("e0", 0, Purpose.EVALUATION))
        store.put_group(dataclasses.replace(store.group("e0"), step=9))
        assert store.last_assigned_step() == 0

    def test_ordinals_and_counts_start_at_nothing(self, store):
        assert store.next_train_ordinal() == 0
        assert store.last_assigned_step() == 0
        assert dict(store.group_counts()) == {}

    def test_the_next_ordinal_follows_the_highest_in_any_state(self, store):
        store.add_group(prompt("g0", 0))
        store.add_group(prompt("g1", 1))
        store.add_group(prompt("e7", 7, Purpose.EVALUATION))
        store.put_group(dataclasses.replace(store.group("g1"), state=GroupState.COMMITTED))
        assert store.next_train_ordinal() == 2
        assert store.group_counts()[Purpose.TRAIN, GroupState.COMMITTED] == 1


class TestLeases:
    LEASE = LeaseRow(
        lease_id="g0.0",
        group_id="g0",
        worker_name="w1",
        worker_epoch=1,
        attempt=0,
        min_weight_version=1,
        sample_indices=(0, 1),
    )

    def test_a_lease_is_known_until_it_is_removed(self, store):
        store.add_lease(self.LEASE)
        assert store.lease("g0.0") == self.LEASE
        store.remove_lease("g0.0")
        assert store.lease("g0.0") is None

    def test_leases_are_listed_by_worker(self, store):
        other = dataclasses.replace(self.LEASE, lease_id="g1.0", worker_name="w2")
        store.add_lease(other)
        store.add_lease(self.LEASE)
        assert store.leases("w2") == (other,)
        assert store.leases() == (self.LEASE, other)

    def test_an_unknown_lease_cannot_be_removed(self, store):
        with pytest.raises(ConflictError):
            store.remove_lease("nobody")


class TestResults:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"log_probs": None},
            {"action_mask": UInt8Bytes(b"\x01\x00\x01")},
            {"routed_experts": RoutedExperts(expert_ids=int32_column([1, 2, 3]), layers=1, top_k=1)},
        ],
    )
    def test_a_batch_comes_back_as_it_was_submitted(self, store, changes):
        store.add_group(prompt())
        submit(store, batch=trajectories(**changes))
        (stored,) = store.batches("g0")
        assert stored.batch == trajectories(**changes)
        assert (stored.worker_name, stored.backend) == ("w1", "cpu")

    def test_submissions_are_remembered_by_identity(self, store):
        store.add_group(prompt())
        key = submit(store)
        assert store.has_submission(key)
        assert not store.has_submission(dataclasses.replace(key, sequence=2))
        assert not store.has_submission(dataclasses.replace(key, worker_epoch=2))

    def test_a_submission_is_not_stored_twice(self, store):
        store.add_group(prompt())
        submit(store)
        with pytest.raises(ConflictError), store.nested():
            submit(store)
        assert len(store.batches("g0")) == 1

    def test_a_sample_is_not_stored_twice(self, store):
        store.add_group(prompt())
        submit(store, 1)
        with pytest.raises(ConflictError), store.nested():
            submit(store, 2)

    def test_scalars_and_indices_are_kept_by_group(self, store):
        store.add_group(prompt())
        submit(store)
        assert store.stored_indices("g0") == {0, 1}
        assert store.sequences("g0") == (sequence(sample_index=0), sequence(sample_index=1))
        assert store.stored_indices("g1") == frozenset()


class TestSteps:
    def test_a_commit_comes_back_with_its_outcomes_in_order(self, store):
        rows = (outcome(sample_index=1), outcome(sample_index=0, staleness_log_ratio=-0.5))
        store.add_commit(commit(1, outcomes=rows))
        assert store.commit_of(1) == commit(1, outcomes=rows)
        assert store.commit_of(2) is None

    def test_a_step_counts_once(self, store):
        store.add_commit(commit(1))
        with pytest.raises(ConflictError), store.nested():
            store.add_commit(commit(1))

    def test_abandoned_steps_make_room_and_stay(self, store):
        for step in (1, 2, 3):
            store.add_commit(commit(step))
        assert store.abandon_after(1) == 2
        assert store.commit_of(1) is not None
        assert store.commit_of(2) is None
        store.add_commit(commit(2, trainer_epoch=2))
        assert store.commit_of(2).trainer_epoch == 2
        assert store.abandon_after(3) == 0

    def test_versions_of_abandoned_steps_are_marked(self, store):
        store.add_version(manifest(1, step=1))
        store.add_version(manifest(2, step=2))
        store.abandon_after(1)
        assert [row.abandoned for row in store.versions()] == [False, True]


class TestVersions:
    def test_a_manifest_comes_back_as_it_was_published(self, store):
        store.add_version(manifest(2, step=1))
        assert store.manifest(2) == manifest(2, step=1)
        assert store.manifest(1) is None
        assert store.version(1) is None
        assert store.version(2).state_digest == "s"

    def test_the_latest_is_the_highest(self, store):
        assert store.latest_version() is None
        store.add_version(manifest(1))
        store.add_version(manifest(2))
        assert store.latest_version().version == 2

    def test_pruned_versions_are_known_but_not_listed(self, store):
        store.add_version(manifest(1))
        store.add_version(manifest(2))
        store.mark_version_pruned(1)
        assert [row.version for row in store.versions()] == [2]
        assert store.version(1).pruned
        with pytest.raises(ConflictError):
            store.mark_version_pruned(9)


class TestRetention:
    def committed(self, store, step=1):
        store.add_group(prompt())
        submit(store)
        store.put_group(dataclasses.replace(store.group("g0"), state=GroupState.COMMITTED, step=step))

    def retained(self, rank, sample_index=0):
        return RetainedSequence(
            rank=rank,
            group_id="g0",
            sample_index=sample_index,
            token_ids=b"1234",
            log_probs=None,
            action_mask=None,
            trainer_log_probs=b"5678",
        )

    def test_committed_groups_up_to_a_step_are_prunable(self, store):
        self.committed(store, step=2)
        assert store.prunable_groups(1, 9) == ()
        assert store.prunable_groups(2, 0) == ("g0",)

    def test_taken_evaluation_groups_are_prunable_by_their_own_step(self, store):
        store.add_group(prompt("e0", 0, Purpose.EVALUATION))
        submit(store, group_id="e0")
        store.put_group(dataclasses.replace(store.group("e0"), state=GroupState.TAKEN, step=3))
        assert store.prunable_groups(9, 2) == ()
        assert store.prunable_groups(0, 3) == ("e0",)

    def test_pruning_removes_columns_and_prompt_and_keeps_scalars(self, store):
        self.committed(store)
        store.prune_group("g0")
        assert store.batches("g0") == ()
        assert store.prompt_group("g0").prompt_token_ids == b""
        assert store.prompt_group("g0").payload == b""
        assert len(store.sequences("g0")) == 2
        assert store.has_submission(SubmissionId("w1", 1, 1))
        assert store.prunable_groups(9, 9) == ()

    def test_the_prompt_stays_while_the_reservoir_needs_it(self, store):
        self.committed(store)
        store.retain(self.retained(5))
        store.prune_group("g0")
        assert store.prompt_group("g0").payload == b"\x00answer"
        store.trim_retained(0)
        assert store.prompt_group("g0").payload == b""

    def test_the_lowest_ranks_stay(self, store):
        self.committed(store)
        store.retain(self.retained(2**62))
        store.retain(self.retained(7, sample_index=1))
        store.trim_retained(1)
        assert store.retained_ranks() == (7,)

    def test_trimming_leaves_the_prompts_of_groups_that_are_not_pruned(self, store):
        self.committed(store)
        store.retain(self.retained(5))
        store.trim_retained(0)
        assert store.prompt_group("g0").payload == b"\x00answer"

    def test_trainer_log_probs_of_old_steps_go(self, store):
        store.add_commit(commit(1))
        store.add_commit(commit(2))
        store.prune_commit_log_probs(1)
        assert store.commit_of(1).log_probs is None
        assert store.commit_of(2).log_probs == b"abcd"


class TestFleet:
    PROBE = ProbeResult(
        weight_version=2,
        mean_absolute_difference=0.01,
        max_absolute_difference=0.02,
        mean_difference=-0.01,
        tokens=1,
        log_probs=float32_column([-1.0]),
    )

    def test_a_worker_comes_back_without_the_probes_numbers(self, store):
        worker = WorkerRow(
            request=JOIN,
            worker_epoch=2,
            state=WorkerState.QUARANTINED,
            state_reason="why",
            completions=3,
            last_probe=self.PROBE,
            must_pass_probe=True,
            draining=True,
            former_boot_ids=("a", "b"),
        )
        store.put_worker(worker)
        short = dataclasses.replace(worker, last_probe=dataclasses.replace(self.PROBE, log_probs=None))
        assert store.worker("w1") == short
        assert store.workers() == (short,)
        assert store.worker("w2") is None

    def test_probes_keep_their_numbers(self, store):
        probe = ProbeRow(
            worker_name="w1",
            worker_epoch=1,
            numerics_id="n",
            result=self.PROBE,
            accepted=True,
            occurred_at=1.5,
        )
        store.add_probe(probe)
        assert store.probes("w1") == (probe,)
        assert store.probes("w2") == ()

    def test_events_are_numbered_from_one(self, store):
        for number in (1, 2, 3):
            store.add_event(float(number), "kind", "w1", f"message {number}")
        assert [event.sequence for event in store.events(0, 2)] == [1, 2]
        (last,) = store.events(2, 9)
        assert (last.sequence, last.message, last.occurred_at) == (3, "message 3", 3.0)

    def test_counters_add_up(self, store):
        store.count("a")
        store.count("a", 4)
        assert store.counters() == {"a": 5}


class TestSqlite:
    """What only a store on disk can promise."""

    def test_committed_data_is_there_after_a_restart(self, sqlite_path):
        store = SqliteStore(sqlite_path)
        store.begin()
        store.put_run(RUN)
        store.commit()
        store.close()
        again = SqliteStore(sqlite_path)
        assert again.run() == RUN
        again.close()

    def test_a_full_disk_is_named_and_leaves_committed_data(self, sqlite_path):
        store = SqliteStore(sqlite_path)
        store.begin()
        store.put_run(RUN)
        store.commit()
        (pages,) = store._journal.row("PRAGMA page_count")
        store._journal.row(f"PRAGMA max_page_count={pages + 2}")
        store.begin()
        with pytest.raises(DiskFullError, match="no space left"):
            store.add_group(dataclasses.replace(prompt(), payload=bytes(2**20)))
        store.rollback()
        store.begin()
        assert store.run() == RUN
        assert store.group("g0") is None
        store.commit()
        store.close()

    def test_a_newer_schema_is_refused(self, sqlite_path):
        with contextlib.closing(sqlite3.connect(sqlite_path)) as connection:
            connection.execute("PRAGMA user_version=999")
        with pytest.raises(StorageError, match="999"):
            SqliteStore(sqlite_path)

    def test_a_damaged_journal_is_refused(self, sqlite_path):
        sqlite_path.write_bytes(b"not a database, but long enough to look at" * 100)
        with pytest.raises(DamagedError):
            SqliteStore(sqlite_path)

    def test_commits_are_synced(self, sqlite_path):
        store = SqliteStore(sqlite_path)
        assert store._journal.row("PRAGMA journal_mode") == ("wal",)
        assert store._journal.row("PRAGMA synchronous") == (2,)
        store.close()
