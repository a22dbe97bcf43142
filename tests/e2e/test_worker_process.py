"""The worker as a process against a hub as a process: killed, drained, refused.

Every state that a test waits for lasts until the test itself ends it: the scripted engine's gate says how many groups a
worker may begin, and what is leased beyond that stays leased.
"""

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
GROUPS, GROUP_SIZE, TOKENS = 12, 4, 100
SAMPLING = SamplingParameters(max_new_tokens=TOKENS, stop_token_ids=())
PATIENCE = 300.0


class Site:
    """A hub, the run's trainer, and workers with the scripted engine; every process is ended at the end.

    A worker that is silent for `dead_after` seconds is dead: many times what a machine under load needs for a heartbeat.
    """

    def __init__(self, directory, stack, dead_after):
        self.directory = directory
        self._stack = stack
        self.model_dir = write_model(directory / "model", vocabulary_size=16)
        self.gate = directory / "gate"
        self.let_begin(GROUPS)
        terms = ("--set", "hub.heartbeat_seconds=1", "--set", f"hub.missed_heartbeats={dead_after}")
        self._start("hub", "hub", "--run-dir", str(directory), *terms)
        self.address = self._await_address()
        self.trainer = stack.enter_context(TrainingClient(self.address))
        self.fleet = stack.enter_context(FleetClient(self.address))

    def worker(self, name, *options):
        return self._start(
            name, "worker", "--hub", self.address, "--engine", "scripted", "--name", name, *options
        )

    def let_begin(self, groups):
        """Each worker may begin so many groups; the others stay leased."""
        new = self.gate.with_suffix(".new")
        new.write_text(str(groups))
        new.replace(self.gate)

    def counts(self):
        return self.fleet.run_status().training

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()

    def until(self, predicate, what):
        deadline = time.monotonic() + PATIENCE
        while not predicate():
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.02)

    def take_batch(self):
        """The batch of step 1, once it is complete; one call of the client waits for a part of that time."""
        deadline = time.monotonic() + PATIENCE
        while (groups := self.trainer.take_batch(1, wait=10)) is None:
            assert time.monotonic() < deadline, "the batch was not completed"
        return groups

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
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "HETERO_RL_SCRIPTED_GATE": str(self.gate),
        }
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
def start_site(tmp_path):
    with contextlib.ExitStack() as stack:

        def _start_site(*, dead_after=600):
            site = Site(tmp_path, stack, dead_after)
            site.open_run()
            return site

        yield _start_site


def test_a_killed_worker_costs_its_leases_and_nothing_else(start_site):
    site = start_site(dead_after=10)
    site.let_begin(1)
    killed = site.worker("first")
    site.until(
        lambda: (site.counts().leased, site.counts().finished) == (GROUPS - 1, 1), "work of the first worker"
    )
    killed.kill()
    killed.wait()
    site.let_begin(GROUPS)
    second = site.worker("second")
    groups = site.take_batch()
    assert [finished.group.ordinal for finished in groups] == list(range(GROUPS))
    for finished in groups:
        indices = [index for batch in finished.batches for index in batch.sample_indices]
        assert sorted(indices) == list(range(GROUP_SIZE))
        assert {length for batch in finished.batches for length in batch.lengths} == {TOKENS}
    makers = [finished.worker_names for finished in groups]
    assert sorted(makers) == [("first",)] + [("second",)] * (GROUPS - 1)
    site.trainer.close_run(complete=True)
    assert second.wait(PATIENCE) == 0
    states = {worker.worker_name: worker.state for worker in site.fleet.list_workers(include_gone=True)}
    assert states == {"first": WorkerState.DEAD, "second": WorkerState.LEFT}


def test_a_terminated_worker_hands_in_what_runs_and_leaves(start_site):
    site = start_site()
    site.let_begin(0)
    worker = site.worker("w", "--set", f"inference.worker.max_concurrent_sequences={2 * GROUP_SIZE}")
    site.until(lambda: site.counts().leased == 2, "two leases")
    worker.send_signal(signal.SIGTERM)
    site.until(lambda: "SIGTERM arrived" in site.log("w"), "the signal")
    site.let_begin(GROUPS)
    assert worker.wait(PATIENCE) == 0
    training = site.counts()
    assert (training.leased, training.finished, training.queued) == (0, 2, GROUPS - 2)
    (summary,) = site.fleet.list_workers(include_gone=True)
    assert (summary.state, summary.state_reason) == (WorkerState.LEFT, "SIGTERM arrived")


def test_a_worker_with_another_model_is_refused_with_both_digests(start_site, tmp_path):
    site = start_site()
    other = write_model(tmp_path / "other", vocabulary_size=17)
    worker = site.worker("w", "--set", f"inference.worker.model_path={json.dumps(str(other))}")
    assert worker.wait(PATIENCE) == 2
    assert model_digests(site.model_dir).config in site.log("w")
    assert model_digests(other).config in site.log("w")
