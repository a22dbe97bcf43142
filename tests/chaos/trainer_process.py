"""A trainer without a model: `python -m tests.chaos.trainer_process ADDRESS DIRECTORY SETTINGS`.

It keeps the contract of the real one, which the promises rest on: what changed the weights is what the last durable checkpoint says, a
step is checkpointed before or after it is committed, and a resume begins at the checkpoint. The "weights" are the list of samples.
"""

import dataclasses
import errno
import hashlib
import json
import struct
import sys
import time
from pathlib import Path

from hetero_rl.config.tree import SecurityConfig
from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.failpoints import reach
from hetero_rl.files import write_whole
from hetero_rl.weights.digests import digest_of_bytes, state_digest
from hetero_rl.weights.model_files import collect_model_files, model_digests
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import (
    BlobReference,
    DataType,
    Disposition,
    Limits,
    PromptGroup,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
)
from tests.chaos.history import Applied, History

PATIENCE = 1800.0  # of a trainer on a machine that others keep busy


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """A small run."""

    total_steps: int
    groups_per_step: int
    group_size: int
    max_lag: int
    tokens: int
    checkpoint_every: int
    weights: int = 3
    """Numbers in the one tensor that is published."""
    remembers: bool = True
    """Whether it keeps which samples it was given, for the judge. That record grows with the run."""

    def json(self):
        """For the command line."""
        return json.dumps(dataclasses.asdict(self))


class Trainer:
    """Takes, "trains", checkpoints, commits, publishes."""

    def __init__(self, client, directory, settings):
        self.client = client
        self.directory = directory
        self.settings = settings
        self.history = History(directory / "history.jsonl")
        self.applied = read_applied(directory)
        self.checkpointed = len(self.applied)
        self.sampling = SamplingParameters(max_new_tokens=settings.tokens, stop_token_ids=())

    def run(self):
        grant = self.call(self.client.open_run, self.run_request())
        self.version = grant.latest_weight_version
        self.ordinal = grant.next_train_ordinal
        self.epoch = grant.trainer_epoch
        self.upload_model()
        self.publish()
        while len(self.applied) < self.settings.total_steps:
            self.enqueue()
            groups = self.call(self.client.take_batch, len(self.applied) + 1, 1.0)
            if groups is not None:
                self.step(groups)
        self.call(self.client.close_run, complete=True)

    def step(self, groups):
        step = len(self.applied) + 1
        samples, lags = content(groups, step)
        self.history.note("taken", step=step, samples=samples, trainer_epoch=self.epoch)
        self.applied.append(
            Applied(step, samples, lags) if self.settings.remembers else Applied(step, {}, [])
        )
        due = step % self.settings.checkpoint_every == 0 or step == self.settings.total_steps
        if due:
            due = self.checkpoint()
        reach("trainer.before_commit")
        self.call(self.client.commit_step, step, outcomes(groups, step))
        reach("trainer.after_commit")
        self.publish()
        if due:
            self.call(self.client.commit_checkpoint, step, max(0, step - self.settings.checkpoint_every))
            reach("trainer.after_commit_checkpoint")

    def checkpoint(self):
        """Whether one was written: a full disk costs this one and not the run."""
        reach("trainer.before_checkpoint")
        text = json.dumps([dataclasses.asdict(item) for item in self.applied])
        try:
            write_whole(self.directory / "checkpoint.json", text)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.history.note("checkpoint missed", step=len(self.applied))
            return False
        self.checkpointed = len(self.applied)
        reach("trainer.after_checkpoint")
        return True

    def enqueue(self):
        ahead = (len(self.applied) + 2 + self.settings.max_lag) * self.settings.groups_per_step
        last = min(ahead, self.settings.total_steps * self.settings.groups_per_step)
        new = [
            PromptGroup(
                group_id=f"g{ordinal}",
                ordinal=ordinal,
                prompt_token_ids=int32_column([3, ordinal % 16]),
                group_size=self.settings.group_size,
                sampling=self.sampling,
            )
            for ordinal in range(self.ordinal, last)
        ]
        if new:
            self.call(self.client.enqueue_groups, new)
            self.ordinal = last

    def publish(self):
        self.version += 1
        weights = struct.pack("<f", len(self.applied)) * self.settings.weights
        manifest = manifest_of(weights, version=self.version, step=len(self.applied))
        self.put(manifest.blobs[0], lambda: iter([weights]))
        reach("trainer.before_publish")
        self.call(self.client.publish_version, manifest)
        reach("trainer.after_publish")

    def upload_model(self):
        for file, path in collect_model_files(self.directory / "model"):
            self.put(file.blob, lambda path=path: iter([path.read_bytes()]))

    def put(self, reference, chunks):
        self.call(lambda: self.client.put_blob(reference, chunks()))

    def run_request(self):
        model = self.directory / "model"
        return RunRequest(
            run_id="chaos",
            groups_per_step=self.settings.groups_per_step,
            max_lag=self.settings.max_lag,
            total_steps=self.settings.total_steps,
            model_digests=model_digests(model),
            model_files=tuple(file for file, _ in collect_model_files(model)),
            sampling=self.sampling,
            limits=Limits(
                max_message_bytes=2**22,
                max_prompt_tokens=16,
                max_completion_tokens=self.settings.tokens,
                max_group_size=self.settings.group_size,
                vocabulary_size=16,
            ),
            config_json="{}",
            software_version="0",
            resume_step=len(self.applied),
        )

    def call(self, method, *arguments, **named):
        """Repeats a call until the hub answers, and has room."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return method(*arguments, **named)
            except UnreachableError:
                if time.monotonic() > deadline:
                    raise
            except RefusedError as error:
                if error.reason != "STORAGE_FULL" or time.monotonic() > deadline:
                    raise
                self.refused(error)
            time.sleep(0.1)

    def refused(self, error):
        """The hub's disk is full."""


def manifest_of(weights, *, version, step):
    """A full copy of one tensor of float32, as `encode_full` would make it."""
    tensor = TensorEntry(
        name="weight",
        data_type=DataType.FLOAT32,
        shape=(len(weights) // 4,),
        digest=digest_of_bytes(weights),
        blob_index=0,
        offset=0,
        size=len(weights),
    )
    return WeightManifest(
        version=version,
        step=step,
        encoding=WeightEncoding.FULL_RAW,
        tensors=(tensor,),
        blobs=(BlobReference(digest_of_bytes(weights), len(weights)),),
        state_digest=state_digest((tensor,)),
    )


def read_applied(directory):
    """What the last checkpoint says was applied."""
    path = directory / "checkpoint.json"
    return [Applied(**item) for item in json.loads(path.read_text())] if path.exists() else []


def content(groups, step):
    """Digest of every sample of a batch by its name, and the lags of its oldest tokens."""
    samples, lags = {}, []
    for finished in groups:
        for batch in finished.batches:
            samples |= sample_digests(batch)
            lags += [
                step - 1 - min(finished.version_steps[span.weight_version] for span in spans)
                for spans in spans_by_sample(batch)
            ]
    return samples, lags


def sample_digests(batch):
    """Digest of the token ids and log-probabilities of every sample, by GROUP/INDEX."""
    digests, start = {}, 0
    for index, length in zip(batch.sample_indices, batch.lengths, strict=True):
        columns = (bytes(batch.token_ids), bytes(batch.log_probs))
        cut = b"".join(column[4 * start : 4 * (start + length)] for column in columns)
        digests[f"{batch.group_id}/{index}"] = hashlib.sha256(cut).hexdigest()[:16]
        start += length
    return digests


def spans_by_sample(batch):
    spans = [[] for _ in batch.sample_indices]
    for span in batch.version_spans:
        spans[span.sample].append(span)
    return spans


def outcomes(groups, step):
    return [
        SequenceOutcome(
            group_id=finished.group.group_id,
            sample_index=index,
            reward=0.0,
            advantage=0.0,
            log_importance_ratio=0.0,
            coefficient=1.0,
            mean_absolute_gap=0.0,
            max_absolute_gap=0.0,
            lag=step - 1 - min(finished.version_steps[span.weight_version] for span in spans),
            disposition=Disposition.TRAINED,
        )
        for finished in groups
        for batch in finished.batches
        for index, spans in zip(batch.sample_indices, spans_by_sample(batch), strict=True)
    ]


def main(address, directory, settings, credentials=None):
    run_trainer_of(Trainer, address, directory, settings, credentials)


def run_trainer_of(kind, address, directory, settings, credentials=None):
    """A trainer of that class until its run has ended."""
    shown = channel_credentials(SecurityConfig(credentials=credentials))
    with TrainingClient(address, shown) as client:
        kind(client, Path(directory), Settings(**json.loads(settings))).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
