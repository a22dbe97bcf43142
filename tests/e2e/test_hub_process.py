"""The hub as a process: killed between journal and acknowledgement, drained, locked, tied to its parent."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest

from hetero_rl.errors import UnreachableError
from hetero_rl.hub.journal_reader import JournalReader, trained_twice
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.clients import RolloutClient
from hetero_rl.wire.columns import float32_column, int32_column
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
    PromptGroup,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    Submission,
    TensorEntry,
    TrajectoryBatch,
    VersionSpan,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
)

pytestmark = pytest.mark.e2e

PATIENCE = 300.0

PROGRAM = """
import sys
from pathlib import Path
from hetero_rl.config.tree import Config
from hetero_rl.errors import HeteroRLError
from hetero_rl.hub.main import serve
try:
    # Nobody sends heartbeats here, and the machine may be slow: no lease ends and no worker dies by the clock.
    config = Config.model_validate({"hub": {"lease_seconds": 3600, "heartbeat_seconds": 1200}})
    serve(config, Path(sys.argv[1]), exit_with_parent=sys.argv[2] == "tied")
except HeteroRLError as error:
    sys.exit(f"error: {error}")
"""

DIGESTS = ModelDigests(config="c" * 64, tokenizer="d" * 64)
SAMPLING = SamplingParameters(max_new_tokens=8, stop_token_ids=(2,))
NUMERICS = NumericsRecord(
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
)


class HubProcess:
    """A hub in a process of its own."""

    def __init__(self, run_dir, failpoint="", tied=False):
        self._address_file = run_dir / "hub" / "address"
        self._address_file.unlink(missing_ok=True)  # a killed hub leaves it behind
        environment = {**os.environ, "HETERO_RL_FAILPOINT": failpoint}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(run_dir), "tied" if tied else "free"],
            env=environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def address(self):
        until = time.monotonic() + PATIENCE
        while not self._address_file.exists():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < until, "the hub did not come up"
            time.sleep(0.02)
        return self._address_file.read_text().strip()

    def wait(self):
        code = self.process.wait(PATIENCE)
        self.process.stdin.close()
        error = self.process.stderr.read()
        self.process.stderr.close()
        return code, error

    def stop(self):
        if self.process.returncode is None:
            self.process.kill()
            self.wait()


@pytest.fixture
def start(tmp_path):
    hubs = []

    def start_hub(**settings):
        hubs.append(HubProcess(tmp_path, **settings))
        return hubs[-1]

    yield start_hub
    for hub in hubs:
        hub.stop()


def open_run(trainer):
    trainer.open_run(
        RunRequest(
            run_id="run",
            groups_per_step=1,
            max_lag=1,
            total_steps=10,
            model_digests=DIGESTS,
            model_files=(),
            sampling=SAMPLING,
            limits=Limits(
                max_message_bytes=2**20,
                max_prompt_tokens=16,
                max_completion_tokens=8,
                max_group_size=4,
                vocabulary_size=100,
            ),
            config_json="{}",
            software_version="0",
        )
    )


def publish(trainer):
    data = float32_column([1.0, 2.0])
    digest = hashlib.sha256(data).hexdigest()
    blob = BlobReference(digest, len(data))
    tensors = (
        TensorEntry(
            name="t", data_type=DataType.FLOAT32, shape=(2,), digest=digest, blob_index=0, offset=0, size=8
        ),
    )
    trainer.put_blob(blob, iter([data]))
    trainer.publish_version(
        WeightManifest(
            version=1,
            step=0,
            encoding=WeightEncoding.FULL_RAW,
            tensors=tensors,
            blobs=(blob,),
            state_digest=state_digest(tensors),
        )
    )


def group(ordinal):
    return PromptGroup(
        group_id=f"g{ordinal}",
        ordinal=ordinal,
        prompt_token_ids=int32_column([5]),
        group_size=1,
        sampling=SAMPLING,
    )


def join_request():
    return JoinRequest(
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
        numerics=NUMERICS,
        model_digests=DIGESTS,
    )


def submission(worker, sequence, lease):
    batch = TrajectoryBatch(
        group_id=lease.work.group_id,
        sample_indices=(0,),
        lengths=(2,),
        token_ids=int32_column([10 + sequence, 2]),
        log_probs=float32_column([-1.0, -0.5]),
        version_spans=(VersionSpan(0, 0, 2, 1),),
        finish_reasons=(FinishReason.STOP,),
        numerics_id=NUMERICS.numerics_id,
        generation_seconds=0.1,
    )
    return Submission(worker=worker, sequence=sequence, lease_id=lease.lease_id, final=True, results=batch)


def prepare(address):
    """A run with two queued groups, both leased to one worker; returns the worker and its submissions."""
    with TrainingClient(address) as trainer:
        open_run(trainer)
        publish(trainer)
        trainer.enqueue_groups([group(0), group(1)])

    async def lease():
        async with RolloutClient(address) as client:
            worker = WorkerIdentity("w1", (await client.join(join_request())).worker_epoch)
            grant = await client.lease_work(worker, loaded_weight_version=1, free_sequences=8, wait=0)
            return [submission(worker, number, lease) for number, lease in enumerate(grant.leases, 1)]

    return asyncio.run(lease())


def submit(address, *submissions):
    async def send():
        async with RolloutClient(address) as client:
            return [await client.submit_results(item) for item in submissions]

    return asyncio.run(send())


def train(address, step, group_id):
    with TrainingClient(address) as trainer:
        open_run(trainer)
        (taken,) = trainer.take_batch(step, wait=10)
        assert taken.group.group_id == group_id
        outcome = SequenceOutcome(
            group_id=group_id,
            sample_index=0,
            reward=1.0,
            advantage=0.5,
            log_importance_ratio=0.0,
            coefficient=1.0,
            mean_absolute_gap=0.0,
            max_absolute_gap=0.0,
            lag=0,
            disposition=Disposition.TRAINED,
        )
        trainer.commit_step(step, [outcome])
        return taken


def test_a_kill_after_the_commit_and_before_the_answer_loses_nothing(start, tmp_path):
    hub = start(failpoint="after_commit_before_ack:submit_results")
    first, second = prepare(hub.address())
    with pytest.raises(UnreachableError):
        submit(hub.address(), first)
    assert hub.wait()[0] == -signal.SIGKILL

    address = start().address()
    repeated, fresh = submit(address, first, second)
    assert repeated.duplicate
    assert not fresh.duplicate
    taken = train(address, 1, "g0")
    assert [batch.token_ids for batch in taken.batches] == [int32_column([11, 2])]
    assert trained_twice(tmp_path / "hub" / "journal.sqlite") == []


def test_a_kill_before_the_commit_leaves_nothing_half_done(start, tmp_path):
    hub = start(failpoint="before_commit:submit_results")
    first, second = prepare(hub.address())
    with pytest.raises(UnreachableError):
        submit(hub.address(), first)
    assert hub.wait()[0] == -signal.SIGKILL

    address = start().address()
    receipts = submit(address, first, second)
    assert [receipt.duplicate for receipt in receipts] == [False, False]
    assert len(train(address, 1, "g0").batches) == 1


def test_sigterm_drains_and_the_next_hub_goes_on(start, tmp_path):
    hub = start()
    first, second = prepare(hub.address())
    submit(hub.address(), first)
    hub.process.send_signal(signal.SIGTERM)
    assert hub.wait() == (0, "")
    assert not (tmp_path / "hub" / "address").exists()

    address = start().address()
    assert submit(address, first)[0].duplicate
    assert not submit(address, second)[0].duplicate
    with FleetClient(address) as fleet:
        assert fleet.run_status().training.finished == 2


def test_a_hub_started_by_a_trainer_ends_with_it(start):
    hub = start(tied=True)
    hub.address()
    hub.process.stdin.close()
    assert hub.wait() == (0, "")


def test_a_second_hub_names_the_first(start):
    hub = start()
    hub.address()
    code, error = start().wait()
    assert code == 1
    assert f"another hub (pid {hub.process.pid})" in error


def test_the_journal_of_a_killed_hub_can_be_read(start, tmp_path):
    hub = start()
    first, _ = prepare(hub.address())
    submit(hub.address(), first)
    hub.process.kill()
    hub.wait()
    with JournalReader(tmp_path / "hub" / "journal.sqlite") as reader:
        (sample,) = reader.samples()
    assert sample.token_ids == int32_column([11, 2])
