"""Journals to damage, made by the hub's own handlers, and everything that a journal says."""

import dataclasses
import hashlib
import shutil

from hetero_rl.hub.clock import SystemClock
from hetero_rl.hub.handlers.context import HubContext, HubSettings
from hetero_rl.hub.handlers.leasing import lease_work
from hetero_rl.hub.handlers.queue import commit_step, enqueue_groups, take_batch
from hetero_rl.hub.handlers.results import submit_results
from hetero_rl.hub.handlers.runs import open_run
from hetero_rl.hub.handlers.versions import publish_version
from hetero_rl.hub.handlers.workers import join
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.stores.records import ScoreRow, SubmissionId
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.weights.digests import state_digest
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
    Purpose,
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

__all__ = ["JOURNAL", "Image", "Scribe", "contents", "make_images"]

JOURNAL = "journal.sqlite"
_INDEX = "-shm"
_SUFFIXES = ("", "-wal", "-synced", _INDEX)
_SAMPLING = SamplingParameters(max_new_tokens=512, stop_token_ids=(2,))
_DIGESTS = ModelDigests(config="c" * 64, tokenizer="d" * 64)
_NUMERICS = NumericsRecord(
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


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """The files that a hub left behind, and what they say."""

    name: str
    directory: object
    states: tuple
    """What the journal said after each commit that its log may be cut back to; the last one is what it says."""
    acknowledged: int
    """Which of `states` was acknowledged last: the machine lost its power before the later ones were synced."""
    index: bool
    """Whether the index of the log is there, which goes with the power."""
    submissions: tuple
    """Every submission that was acknowledged."""

    def copy_to(self, directory):
        """Puts the files into a new directory; returns the journal's path."""
        shutil.copytree(self.directory, directory)
        return directory / JOURNAL


class Scribe:
    """A hub without threads or network that writes a journal."""

    def __init__(self, path, draw):
        self.store = SqliteStore(path)
        self.context = HubContext(self.store, SystemClock(), HubSettings(), MemoryBlobStore())
        self.draw = draw
        self.worker = None
        self.submissions = []
        self.keys = set()
        self.states = []
        self.syncs = True

    def __call__(self, handler, *arguments, **named):
        self.store.begin()
        result = handler(self.context, *arguments, **named)
        self.store.commit()
        if self.syncs:
            self.store.sync()
        self.store.begin()
        self.states.append(contents(self.store, self.keys))
        self.store.commit()
        return result

    def open(self):
        """A run of two groups in each step, one worker, and the first version."""
        self(open_run, _run_request())
        self.keys |= {("run", "run"), ("worker", "w1")}
        self.publish(1)
        self.worker = WorkerIdentity("w1", self(join, _join_request()).worker_epoch)
        self(_add_score)
        self.keys.add(("score", "s1"))

    def publish(self, version):
        """A full copy under its number; its blob is there."""
        data = float32_column([version, version + 0.5])
        blob = BlobReference(hashlib.sha256(data).hexdigest(), len(data))
        upload = self.context.blobs.open_upload(blob)
        upload.write(0, data)
        upload.finish()
        self.keys |= {("manifest", version), ("version", version)}
        self(publish_version, 1, _manifest(version, blob))

    def generate(self, ordinals):
        """Enqueues groups and hands in their completions."""
        groups = [_group(self.draw, ordinal) for ordinal in ordinals]
        self.keys |= {
            (kind, group.group_id) for group in groups for kind in ("group", "prompt", "trajectories")
        }
        self(enqueue_groups, 1, groups)
        self.keys |= {("lease", f"{group.group_id}.0") for group in groups}
        grant = self(lease_work, self.worker, loaded_weight_version=1, free_sequences=64)
        for lease in grant.leases:
            submission = _submission(self.draw, self.worker, len(self.submissions) + 1, lease)
            self.submissions.append(submission)
            self.keys.add(("known", submission.sequence))
            self(submit_results, submission)

    def train(self, step):
        """Takes and commits a step."""
        outcomes = [
            _outcome(self.draw, group_id, index)
            for group_id in self(take_batch, 1, step)
            for index in range(2)
        ]
        self.keys.add(("commit", step))
        self(commit_step, 1, step, outcomes, float32_column(self._log_probs(outcomes)))

    def _log_probs(self, outcomes):
        lengths = {
            (submission.results.group_id, index): length
            for submission in self.submissions
            for index, length in zip(
                submission.results.sample_indices, submission.results.lengths, strict=True
            )
        }
        tokens = sum(lengths[outcome.group_id, outcome.sample_index] for outcome in outcomes)
        return [-self.draw.random() for _ in range(tokens)]


def make_images(directory, draw):
    """Journals as a hub leaves them that ended, was killed, or whose machine lost its power, before or after the last sync."""
    directory.mkdir(parents=True)
    path = directory / "site" / JOURNAL
    path.parent.mkdir()
    scribe = Scribe(path, draw)
    scribe.open()
    scribe.generate(range(2))
    scribe.train(1)
    scribe.publish(2)
    scribe.generate(range(2, 4))
    _move_log(scribe, "TRUNCATE")
    since = len(scribe.states) - 1
    scribe.train(2)
    scribe.generate(range(4, 6))
    images = [
        _image("killed", scribe, directory, since),
        _image("power", scribe, directory, since, index=False),
    ]
    acknowledged = len(scribe.states) - 1 - since
    scribe.syncs = False
    scribe.publish(3)
    scribe.publish(4)
    images.append(_image("unsynced", scribe, directory, since, acknowledged, index=False))
    scribe.syncs = True
    _move_log(scribe, "RESTART")
    since = len(scribe.states) - 1
    scribe.publish(5)
    scribe.generate(range(6, 8))
    images.append(_image("log begun again", scribe, directory, since))
    scribe.store.close()
    images.append(_image("ended", scribe, directory, len(scribe.states) - 1))
    return images


def _move_log(scribe, mode):
    (busy, *_) = scribe.store._journal.row(f"PRAGMA wal_checkpoint({mode})")
    assert not busy


def _image(name, scribe, directory, since, acknowledged=-1, *, index=True):
    target = directory / name.replace(" ", "_")
    target.mkdir()
    for suffix in _SUFFIXES:
        file = directory / "site" / (JOURNAL + suffix)
        if file.exists() and (index or suffix != _INDEX):
            shutil.copyfile(file, target / file.name)
    states = tuple(scribe.states[since:])
    return Image(name, target, states, acknowledged % len(states), index, tuple(scribe.submissions))


_READS = {
    "run": lambda store, _: store.run(),
    "worker": lambda store, name: store.worker(name),
    "group": lambda store, group_id: store.group(group_id),
    "prompt": lambda store, group_id: store.prompt_group(group_id) if store.group(group_id) else None,
    "trajectories": lambda store, group_id: (store.batches(group_id), store.sequences(group_id)),
    "lease": lambda store, lease_id: store.lease(lease_id),
    "known": lambda store, sequence: store.has_submission(SubmissionId("w1", 1, sequence)),
    "commit": lambda store, step: store.commit_of(step),
    "manifest": lambda store, version: store.manifest(version),
    "version": lambda store, version: store.version(version),
    "score": lambda store, score_id: store.score(score_id),
}


def contents(store, keys):
    """What a journal says of each key, (kind, name); the transaction is the caller's."""
    return {key: _READS[key[0]](store, key[1]) for key in sorted(keys, key=str)}


def _run_request():
    return RunRequest(
        run_id="run",
        groups_per_step=2,
        max_lag=4,
        total_steps=10,
        model_digests=_DIGESTS,
        model_files=(),
        sampling=_SAMPLING,
        limits=Limits(
            max_message_bytes=2**20,
            max_prompt_tokens=64,
            max_completion_tokens=512,
            max_group_size=4,
            vocabulary_size=1000,
        ),
        config_json="{}",
        software_version="0",
    )


def _join_request():
    return JoinRequest(
        run_id="run",
        worker_name="w1",
        boot_id="boot",
        backend="cpu",
        software_version="0",
        capabilities=Capabilities(
            max_concurrent_sequences=64,
            max_sequence_tokens=1024,
            scoring=True,
            in_flight_update=True,
            processed_log_probs=False,
        ),
        numerics=_NUMERICS,
        model_digests=_DIGESTS,
    )


def _add_score(context):
    row = ScoreRow(
        score_id="s1", worker_name="w2", weight_version=1, lengths=(2,), token_ids=int32_column([1, 2])
    )
    context.store.put_score(row)


def _manifest(version, blob):
    tensors = (
        TensorEntry(
            name="t",
            data_type=DataType.FLOAT32,
            shape=(2,),
            digest=blob.digest,
            blob_index=0,
            offset=0,
            size=blob.size,
        ),
    )
    return WeightManifest(
        version=version,
        step=version - 1,
        encoding=WeightEncoding.FULL_RAW,
        tensors=tensors,
        blobs=(blob,),
        state_digest=state_digest(tensors),
    )


def _group(draw, ordinal):
    return PromptGroup(
        group_id=f"g{ordinal}",
        ordinal=ordinal,
        prompt_token_ids=int32_column([draw.randrange(1000) for _ in range(draw.randrange(1, 60))]),
        group_size=2,
        sampling=_SAMPLING,
        purpose=Purpose.TRAIN,
        payload=draw.randbytes(draw.randrange(1, 200)),
    )


def _submission(draw, worker, sequence, lease):
    lengths = tuple(
        draw.choice((draw.randrange(2, 20), draw.randrange(2, 512))) for _ in lease.work.sample_indices
    )
    tokens = [draw.randrange(3, 1000) for length in lengths for _ in range(length)]
    position = -1
    for length in lengths:
        position += length
        tokens[position] = 2
    batch = TrajectoryBatch(
        group_id=lease.work.group_id,
        sample_indices=lease.work.sample_indices,
        lengths=lengths,
        token_ids=int32_column(tokens),
        log_probs=float32_column([-draw.random() for _ in tokens]),
        version_spans=tuple(VersionSpan(sample, 0, length, 1) for sample, length in enumerate(lengths)),
        finish_reasons=(FinishReason.STOP,) * len(lengths),
        numerics_id=_NUMERICS.numerics_id,
        generation_seconds=draw.random(),
    )
    return Submission(worker=worker, sequence=sequence, lease_id=lease.lease_id, final=True, results=batch)


def _outcome(draw, group_id, sample_index):
    return SequenceOutcome(
        group_id=group_id,
        sample_index=sample_index,
        reward=float(draw.randrange(2)),
        advantage=draw.uniform(-1, 1),
        log_importance_ratio=draw.uniform(-1, 1),
        coefficient=draw.random(),
        mean_absolute_gap=draw.random(),
        max_absolute_gap=draw.random(),
        lag=0,
        disposition=Disposition.TRAINED,
    )
