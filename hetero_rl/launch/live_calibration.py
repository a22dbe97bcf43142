"""A calibration of the workers of a running hub, at its newest weights, without disturbing the run.

    hub ──weights──► this process: the trainer's side
     └── RequestCalibration, GetScore ──► each worker scores the texts, between its other work

The run publishes new versions meanwhile, and a worker only goes forward: what it could not score in time is asked again at the
newest version. Sampling, A against B, and reversibility need weights of one's own: those a hub started here measures.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hetero_rl.calibration.analysis import analyse_scored
from hetero_rl.calibration.columns import Floats
from hetero_rl.calibration.engine_subject import split_scores
from hetero_rl.calibration.measure import Measured, scored_only
from hetero_rl.calibration.plan import Plan
from hetero_rl.calibration.record import Calibration
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.config import Config
from hetero_rl.errors import BackendError, LaunchError
from hetero_rl.launch.calibrated_backend import score_card
from hetero_rl.launch.calibration import assemble, prepare
from hetero_rl.launch.hub_access import connect_fleet
from hetero_rl.trainer.snapshots import Snapshot
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.full import StagedVersion, stage_full, unpack_full
from hetero_rl.weights.low_rank import merged_tensors, take_apart
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import (
    BlobReference,
    ScoreStatus,
    WeightEncoding,
    WeightManifest,
    WorkerState,
    WorkerSummary,
)
from hetero_rl.wire.ports import FleetPort, WeightPort

if TYPE_CHECKING:
    from hetero_rl.weights.held import HeldWeights

__all__ = ["calibrate_live", "fetch_weights", "live_workers", "score_at"]

_POLL_SECONDS = 0.2
_ATTEMPTS = 5
_PATIENCE = 1800.0


def live_workers(fleet: FleetPort, backends: Sequence[str]) -> dict[str, WorkerSummary]:
    """One active worker for each numerics id of the backends, by backend or, where a backend has several ids, worker name.

    Raises:
        BackendError: A backend has no active worker.
    """
    active = [
        worker for worker in fleet.list_workers(include_gone=False) if worker.state is WorkerState.ACTIVE
    ]
    missing = sorted(set(backends) - {worker.backend for worker in active})
    if missing or not active:
        names = sorted({worker.backend for worker in active})
        raise BackendError(
            f"no active worker of backend {', '.join(missing) or 'any'} at this hub; there are {names or 'none'}"
        )
    chosen: dict[tuple[str, str], WorkerSummary] = {}
    for worker in active:
        if not backends or worker.backend in backends:
            chosen.setdefault((worker.backend, worker.numerics.numerics_id), worker)
    kinds = [worker.backend for worker in chosen.values()]
    return {
        worker.backend if kinds.count(worker.backend) == 1 else worker.worker_name: worker
        for worker in chosen.values()
    }


def score_at(
    fleet: FleetPort,
    workers: Sequence[WorkerSummary],
    sequences: Sequence[Sequence[int]],
    version: int,
    patience: float,
) -> dict[str, list[Floats]] | None:
    """Scores of each worker at exactly that version, by worker name; None when a worker has gone past it.

    Raises:
        LaunchError: A worker did not answer within the patience.
    """
    backends = sorted({worker.backend for worker in workers})
    wanted = {worker.worker_name for worker in workers}
    ids = fleet.request_calibration(backends, score_card(sequences), version)
    deadline = time.monotonic() + patience
    found: dict[str, list[Floats]] = {}
    for score_id in ids:
        status = _answer(fleet, score_id, wanted, deadline)
        if status.failure and status.worker_name in wanted:
            return None
        if status.scores is not None:
            lengths = [len(sequence) for sequence in sequences]
            found[status.worker_name] = split_scores(status.scores.log_probs, lengths)
    return found


def _answer(fleet: FleetPort, score_id: str, wanted: set[str], deadline: float) -> ScoreStatus:
    """The status of a score once it is there; of workers that nobody asked about, as it is."""
    while True:
        status = fleet.get_score(score_id)
        if status.scores is not None or status.failure or status.worker_name not in wanted:
            return status
        if time.monotonic() > deadline:
            raise LaunchError(f"worker {status.worker_name!r} has not scored in time; see `hetero-rl status`")
        time.sleep(_POLL_SECONDS)


def fetch_weights(address: str, config: Config, directory: Path) -> tuple[WeightManifest, Snapshot]:
    """The newest weights of a hub, every digest checked, in memory of this process."""

    async def fetch() -> "StagedVersion | HeldWeights":
        credentials = channel_credentials(config.security)
        limit = config.hub.max_message_bytes
        async with WeightClient(address, credentials, max_message_bytes=limit) as port:
            return await _fetched(port, directory)

    staged = asyncio.run(fetch())
    tied = {entry.name: entry.tied_names for entry in staged.manifest.tensors}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in _model_tensors(staged):
        # Copied: the files go away with the directory.
        tensors.update(dict.fromkeys((name, *tied[name]), tensor.clone()))
    return staged.manifest, Snapshot(staged.manifest.step, tensors)


def _model_tensors(staged: "StagedVersion | HeldWeights") -> Iterator[tuple[str, torch.Tensor]]:
    """The model's own tensors; adapters are added in float32, which is what a worker with them beside the base computes."""
    if staged.manifest.adapter is None:
        return staged.tensors()
    base, adapters = take_apart(staged, staged.manifest.adapter)
    return merged_tensors(base, adapters, torch.float32)


async def _fetched(port: WeightPort, directory: Path) -> "StagedVersion | HeldWeights":
    held: StagedVersion | HeldWeights | None = None
    for manifest in await port.get_plan(held_version=0, wanted_version=0, encodings=supported_encodings()):
        paths = [await _download(port, blob, directory) for blob in manifest.blobs]
        if manifest.encoding is WeightEncoding.ULP_DELTA and held is not None:
            held = _moved(held, manifest, paths)
        elif manifest.encoding is WeightEncoding.FULL_PLANES:
            held = unpack_full(manifest, paths, directory)
        else:
            held = stage_full(manifest, paths)
    if held is None:
        raise BackendError("the hub has no weights yet: the trainer has not published any")
    return held


def _moved(
    held: "StagedVersion | HeldWeights", manifest: WeightManifest, paths: Sequence[Path]
) -> "HeldWeights":
    from hetero_rl.weights.held import HeldWeights

    weights = HeldWeights.from_staged(held) if isinstance(held, StagedVersion) else held
    weights.apply_delta(manifest, paths)
    return weights


async def _download(port: WeightPort, blob: BlobReference, directory: Path) -> Path:
    path = directory / blob.digest
    with path.open("wb") as file:
        async for chunk in port.fetch_blob(blob.digest, 0):
            file.write(chunk)
    return path


def calibrate_live(
    config: Config,
    address: str,
    backends: Sequence[str],
    model_dir: Path,
    *,
    plan: Plan,
    thresholds: Thresholds,
    command: str,
    report: Callable[[str], None],
) -> tuple[Calibration, Callable[[int], str]]:
    """Lets the workers of a running hub score; returns what was found, and what decodes a token.

    Args:
        config: The run's settings.
        address: host:port of its hub.
        backends: Backends as the hub names them; none means all.
        model_dir: The run's model: configuration and tokenizer, and weights of any version.
        plan: How much is measured; what needs weights of its own is left out.
        thresholds: What counts as too much.
        command: What the report says made it.
        report: Takes a sentence on what is done now.

    Raises:
        BackendError: A backend has no active worker, or the weights change faster than they can be scored.
    """
    with (
        connect_fleet(address, config) as fleet,
        tempfile.TemporaryDirectory(prefix="hetero-rl-live-") as work,
    ):
        workers = live_workers(fleet, backends)
        for _ in range(_ATTEMPTS):
            manifest, snapshot = fetch_weights(address, config, Path(work))
            report(f"the trainer's side scores under version {manifest.version}")
            ready = prepare(config, model_dir, plan, snapshot)
            ids = [text.token_ids for text in ready.texts]
            report(f"{', '.join(workers)}: score {len(ids)} sequences")
            scores = score_at(fleet, list(workers.values()), ids, manifest.version, _PATIENCE)
            if scores is not None:
                break
        else:
            raise BackendError(
                f"the run published new weights {_ATTEMPTS} times before all workers had scored"
            )
    measured = Measured(
        plan=ready.plan,
        sequences=tuple(ready.texts),
        checked=(),
        subjects=tuple(
            scored_only(name, worker.backend, worker.numerics, scores[worker.worker_name])
            for name, worker in workers.items()
        ),
    )
    pairs = analyse_scored(
        measured,
        ready.reference,
        estimator=config.estimator.name,
        longest=config.sampling.max_new_tokens,
        thresholds=thresholds,
    )
    calibration = assemble(
        config, model_dir, ready, measured, pairs, thresholds, command, manifest.state_digest
    )
    return calibration, ready.decode
