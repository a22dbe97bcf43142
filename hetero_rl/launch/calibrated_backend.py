"""A backend under calibration: a hub and a worker of their own, driven over the protocol as a trainer drives them.

    this process ──OpenRun, PublishVersion, EnqueueGroups, TakeEvaluation──► hub ◄── worker of the backend
                 ──RequestCalibration, GetScore───────────────────────────►

One hub for each backend, so that every completion and every score is known to be that backend's. Weights reach the worker as
a published version, with a digest of every tensor. Shutdown: the run is closed, the worker leaves, the supervisor ends both.
"""

import contextlib
import functools
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

import hetero_rl
from hetero_rl.calibration.columns import Floats
from hetero_rl.calibration.engine_subject import split_scores
from hetero_rl.calibration.subject import Sampled
from hetero_rl.config import Config
from hetero_rl.errors import BackendError, HeteroRLError, LaunchError, UnreachableError
from hetero_rl.files import write_whole
from hetero_rl.launch.hub_access import connect_fleet, probe_hub
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.launch.supervisor import Supervisor
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.blobs import BlobFile
from hetero_rl.weights.full import encode_full
from hetero_rl.weights.model_files import collect_model_files, model_digests
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.columns import Float32Bytes, float32_view, int32_column, int32_view
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import (
    Capabilities,
    FinishedGroup,
    Limits,
    NumericsRecord,
    ProbeCard,
    PromptGroup,
    Purpose,
    RunRequest,
    SamplingParameters,
    WorkerState,
    WorkerSummary,
)
from hetero_rl.worker.backend import Backend

__all__ = ["CalibratedBackend", "score_card", "while_unreachable"]

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_TAKE_SECONDS = 20.0
_UNREACHABLE_SECONDS = 300.0
_BYTES_PER_TOKEN = 8
T = TypeVar("T")


class CalibratedBackend:
    """`Subject` over a hub of its own; a context manager that ends what it started.

    Args:
        name: What reports call it.
        backend: Its backend.
        config: Settings with `inference` and `run.dir` of this backend.
        model_dir: The model; files without weights go to the worker.
        stop_token_ids: A completion ends with the first of these.
        vocabulary_size: Token ids are below this.
        patience: Seconds that one answer may take.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        config: Config,
        model_dir: Path,
        *,
        stop_token_ids: tuple[int, ...],
        vocabulary_size: int,
        patience: float = 1800.0,
    ) -> None:
        self.name = name
        self.backend = backend.name
        self._config = config
        self._stops = stop_token_ids
        self._patience = patience
        self._failure: HeteroRLError | None = None
        self._version = 0
        self._groups = 0
        self._stack = contextlib.ExitStack()
        try:
            self._start(backend, model_dir, vocabulary_size)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, backend: Backend, model_dir: Path, vocabulary_size: int) -> None:
        config, run = self._config, RunDirectory(self._config.run.dir)
        run.prepare()
        write_whole(run.config, config.model_dump_json(indent=2) + "\n")
        supervisor = self._stack.enter_context(
            Supervisor(
                config,
                run,
                backends={backend.name: backend},
                probe=lambda address: probe_hub(address, config),
                connect=lambda address: connect_fleet(address, config),
                on_failure=self._note_failure,
                notify=lambda text: _LOG.warning("%s: %s", self.name, text),
            )
        )
        address = supervisor.start()
        credentials = channel_credentials(config.security)
        limit = config.hub.max_message_bytes
        self._port = self._stack.enter_context(TrainingClient(address, credentials, max_message_bytes=limit))
        self._fleet = self._stack.enter_context(connect_fleet(address, config))
        files = collect_model_files(model_dir)
        grant = self._port.open_run(self._run_request(model_dir, vocabulary_size))
        self._stack.callback(self._close_run)
        del grant
        for file, path in files:
            self._port.put_blob(file.blob, iter([path.read_bytes()]))
        self._worker = self._until(self._active_worker, "its worker to join")

    def _run_request(self, model_dir: Path, vocabulary_size: int) -> RunRequest:
        config = self._config
        return RunRequest(
            run_id=config.run.name,
            groups_per_step=1,
            max_lag=0,
            total_steps=1,
            model_digests=model_digests(model_dir),
            model_files=tuple(file for file, _ in collect_model_files(model_dir)),
            sampling=SamplingParameters(
                max_new_tokens=config.sampling.max_new_tokens, stop_token_ids=self._stops
            ),
            limits=Limits(
                max_message_bytes=config.hub.max_message_bytes,
                max_prompt_tokens=config.task.max_prompt_tokens,
                max_completion_tokens=config.sampling.max_new_tokens,
                max_group_size=config.trainer.group_size,
                vocabulary_size=vocabulary_size,
            ),
            config_json=config.model_dump_json(),
            software_version=hetero_rl.__version__,
        )

    @property
    def numerics(self) -> NumericsRecord:
        """See `Subject`."""
        return self._worker.numerics

    @property
    def capabilities(self) -> Capabilities:
        """See `Subject`."""
        return self._worker.capabilities

    def load(self, version: int, snapshot: Snapshot) -> None:
        """Publishes the weights; the worker checks every tensor's digest before it serves them."""
        with tempfile.TemporaryDirectory(prefix="hetero-rl-calibrate-") as directory:
            encoded = encode_full(snapshot.tensors, Path(directory), version=version, step=version - 1)
            for blob in encoded.blobs:
                self._repeated(functools.partial(self._upload, blob))
            self._repeated(lambda: self._port.publish_version(encoded.manifest))
        self._version = version

    def _upload(self, blob: BlobFile) -> None:
        self._port.put_blob(blob.reference, blob.chunks())

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Sampled]:
        """See `Subject`."""
        groups = [
            PromptGroup(
                group_id=f"c{self._groups + number:06d}",
                ordinal=self._groups + number,
                prompt_token_ids=int32_column(prompt),
                group_size=group_size,
                sampling=SamplingParameters(
                    max_new_tokens=max_new_tokens,
                    stop_token_ids=self._stops,
                    temperature=temperature,
                    seed=seed + number,
                ),
                purpose=Purpose.EVALUATION,
                min_weight_version=self._version,
            )
            for number, prompt in enumerate(prompts)
        ]
        self._groups += len(groups)
        self._repeated(lambda: self._port.enqueue_groups(groups))
        ids = [group.group_id for group in groups]
        finished = self._until(
            lambda: self._port.take_evaluation(ids, wait=_TAKE_SECONDS), f"{len(ids)} groups of completions"
        )
        by_id = {group.group.group_id: group for group in finished}
        return [sample for group_id in ids for sample in _samples(by_id[group_id])]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Floats]:
        """See `Subject`."""
        found: list[Floats] = []
        most = self._config.hub.max_message_bytes // _BYTES_PER_TOKEN
        part: list[Sequence[int]] = []
        for sequence in (*sequences, None):
            full = sequence is None or sum(map(len, part)) + len(sequence) > most
            if part and full:
                found += self._score_part(part)
                part = []
            if sequence is not None:
                part.append(sequence)
        return found

    def _score_part(self, sequences: Sequence[Sequence[int]]) -> list[Floats]:
        card = score_card(sequences)
        (score_id,) = self._repeated(
            lambda: self._fleet.request_calibration((self._worker.backend,), card, self._version)
        )

        def answer() -> Float32Bytes | None:
            status = self._fleet.get_score(score_id)
            if status.failure:
                raise BackendError(f"{self.name} cannot score: {status.failure}")
            return status.scores.log_probs if status.scores is not None else None

        return split_scores(self._until(answer, "scores"), [len(sequence) for sequence in sequences])

    def close(self) -> None:
        """See `Subject`."""
        self._stack.close()

    def _close_run(self) -> None:
        try:
            self._port.close_run(complete=True)
        except HeteroRLError as error:
            _LOG.warning("%s: the hub was not told that the calibration is over: %s", self.name, error)

    def _active_worker(self) -> WorkerSummary | None:
        workers = self._fleet.list_workers(include_gone=False)
        return next((worker for worker in workers if worker.state is WorkerState.ACTIVE), None)

    def _note_failure(self, error: HeteroRLError) -> None:
        self._failure = error

    def _until(self, ask: Callable[[], T | None], what: str) -> T:
        """Asks until there is an answer; raises what the supervisor reported, or LaunchError after the patience."""
        deadline = time.monotonic() + self._patience
        while True:
            answer = self._repeated(ask)
            if answer is not None:
                return answer
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                logs = RunDirectory(self._config.run.dir).logs
                raise LaunchError(
                    f"{self.name}: waited {self._patience:.0f} s for {what} in vain; see the logs in {logs}"
                )
            time.sleep(_POLL_SECONDS)

    def _repeated(self, call: Callable[[], T]) -> T:
        return while_unreachable(
            call,
            seconds=_UNREACHABLE_SECONDS,
            failure=lambda: self._failure,
            notify=lambda text: _LOG.warning("%s: %s", self.name, text),
        )


def while_unreachable(
    call: Callable[[], T],
    *,
    seconds: float,
    failure: Callable[[], HeteroRLError | None],
    notify: Callable[[str], None],
) -> T:
    """Makes a call of which a repetition does no harm, again and again while the hub does not answer.

    A hub on a busy machine misses a ping now and then; what was measured for an hour must not end with that.

    Args:
        call: Raises UnreachableError where there was no answer.
        seconds: How long it is tried.
        failure: What the supervisor reported, if anything: then nobody will answer.
        notify: Takes a sentence for each repetition.

    Raises:
        UnreachableError: There was no answer in that time.
        HeteroRLError: What `failure` returned.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except UnreachableError as error:
            reported = failure()
            if reported is not None:
                raise reported from error
            if time.monotonic() > deadline:
                raise
            notify(f"asks again, as the hub does not answer: {error}")
        time.sleep(_POLL_SECONDS)


def score_card(sequences: Sequence[Sequence[int]]) -> ProbeCard:
    """Sequences to score, as `FleetPort.request_calibration` takes them."""
    return ProbeCard(
        lengths=tuple(len(sequence) for sequence in sequences),
        token_ids=int32_column(token for sequence in sequences for token in sequence),
        log_probs=Float32Bytes(b""),
        tolerance=1.0,
    )


def _samples(group: FinishedGroup) -> list[Sampled]:
    """Completions of a group in order of their index."""
    prompt = tuple(int32_view(group.group.prompt_token_ids))
    found: dict[int, Sampled] = {}
    for batch in group.batches:
        if batch.log_probs is None:
            raise BackendError("the worker reported no log-probabilities for sampled completions")
        tokens, log_probs = int32_view(batch.token_ids), float32_view(batch.log_probs)
        start = 0
        for index, length in zip(batch.sample_indices, batch.lengths, strict=True):
            part = slice(start, start + length)
            found[index] = Sampled(prompt, tuple(tokens[part]), np.asarray(log_probs[part], dtype=np.float64))
            start += length
    return [found[index] for index in sorted(found)]
