"""The worker as a process against a hub as a process: killed, drained, refused."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from hetero_rl.weights.full import encode_full
from hetero_rl.weights.model_files import collect_model_files, model_digests
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import Limits, PromptGroup, RunRequest, SamplingParameters, WorkerState

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COMMAND = (sys.executable, "-m", "hetero_rl.cli.main")
GROUPS, GROUP_SIZE, TOKENS = 12, 4, 2000
# No stop token: every completion has TOKENS tokens, so that a kill finds some of them running.
SAMPLING = SamplingParameters(max_new_tokens=TOKENS, stop_token_ids=())
START_SECONDS = 90.0


class Site:
    """A hub, the run's trainer, and workers with the scripted engine; every process is ended at the end."""

    def __init__(self, directory, stack):
        self.directory = directory
        self._stack = stack
        self.model_dir = write_model(directory / "model", vocabulary_size=16)
        self._start("hub", "hub", "--run-dir", str(directory), "--set", "hub.heartbeat_seconds=1")
        self.address = self._await_address()
        self.trainer = stack.enter_context(TrainingClient(self.address))
        self.fleet = stack.enter_context(FleetClient(self.address))

    def worker(self, name, *options):
        return self._start(
            name, "worker", "--hub", self.address, "--engine", "scripted", "--name", name, *options
        )

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()

    def until(self, predicate, what):
        deadline = time.monotonic() + START_SECONDS
        while not predicate():
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.02)

    def open_run(self):
        files = collect_model_files(self.model_dir)
        request = RunRequest(
            run_id="r",
            groups_per_step=GROUPS,
            max_lag=0,
            total_steps=1,
            model_digests=model_digests(self.model_dir),
            model_files=tuple(file for file, _ in files),
            sampling=SAMPLING,
            limits=Limits(
                max_message_bytes=2**22,
                max_prompt_tokens=64,
                max_completion_tokens=TOKENS,
                max_group_size=GROUP_SIZE,
                vocabulary_size=16,
            ),
            config_json="{}",
            software_version="0",
        )
        self.trainer.open_run(request)
        for file, path in files:
            self.trainer.put_blob(file.blob, iter([path.read_bytes()]))
        encoded = encode_full({"weight": torch.ones(3)}, self.directory / "encoded", version=1, step=0)
        for blob in encoded.blobs:
            self.trainer.put_blob(blob.reference, blob.chunks())
        self.trainer.publish_version(encoded.manifest)
        self.trainer.enqueue_groups(
            [
                PromptGroup(
                    group_id=f"g{ordinal}",
                    ordinal=ordinal,
                    prompt_token_ids=int32_column([3, ordinal]),
                    group_size=GROUP_SIZE,
                    sampling=SAMPLING,
                )
                for ordinal in range(GROUPS)
            ]
        )

    def _start(self, name, *arguments):
        log = self._stack.enter_context((self.directory / f"{name}.log").open("ab"))
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.directory / "cache")}
        process = subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log, env=environment)
        self._stack.callback(end, process)
        return process

    def _await_address(self):
        file = self.directory / "hub" / "address"
        self.until(file.exists, "the start of the hub")
        return file.read_text().strip()


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait(30)


def write_model(model_dir, *, vocabulary_size):
    model_dir.mkdir()
    (model_dir / "config.json").write_text(json.dumps({"vocab_size": vocabulary_size}))
    (model_dir / "vocab.txt").write_text("a")
    return model_dir


@pytest.fixture
def site(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_a_killed_worker_costs_its_leases_and_nothing_else(site):
    site.open_run()
    killed = site.worker("first")
    site.until(
        lambda: (counts := site.fleet.run_status().training).leased and counts.finished,
        "work of the first worker",
    )
    killed.kill()
    second = site.worker("second")
    groups = site.trainer.take_batch(1, START_SECONDS)
    assert [finished.group.ordinal for finished in groups] == list(range(GROUPS))
    for finished in groups:
        indices = [index for batch in finished.batches for index in batch.sample_indices]
        assert sorted(indices) == list(range(GROUP_SIZE))
        assert {length for batch in finished.batches for length in batch.lengths} == {TOKENS}
    assert {name for finished in groups for name in finished.worker_names} == {"first", "second"}
    site.trainer.close_run(complete=True)
    assert second.wait(START_SECONDS) == 0
    states = {worker.worker_name: worker.state for worker in site.fleet.list_workers(include_gone=True)}
    assert states == {"first": WorkerState.DEAD, "second": WorkerState.LEFT}


def test_a_terminated_worker_hands_in_what_runs_and_leaves(site):
    site.open_run()
    worker = site.worker("w", "--set", "inference.worker.max_concurrent_sequences=8")
    site.until(lambda: site.fleet.run_status().training.leased, "a lease")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(START_SECONDS) == 0
    training = site.fleet.run_status().training
    assert training.leased == 0
    assert training.finished
    assert training.queued == GROUPS - training.finished
    (summary,) = site.fleet.list_workers(include_gone=True)
    assert (summary.state, summary.state_reason) == (WorkerState.LEFT, "SIGTERM arrived")


def test_a_worker_with_another_model_is_refused_with_both_digests(site, tmp_path):
    site.open_run()
    other = write_model(tmp_path / "other", vocabulary_size=17)
    worker = site.worker("w", "--set", f"inference.worker.model_path={json.dumps(str(other))}")
    assert worker.wait(START_SECONDS) == 2
    assert model_digests(site.model_dir).config in site.log("w")
    assert model_digests(other).config in site.log("w")
