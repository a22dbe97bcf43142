"""What a run keeps, as columns: scalars of every trained sequence, tokens of those that are retained, probes, events."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero_rl.calibration.columns import Floats, Integers, PairColumns
from hetero_rl.errors import ConfigError
from hetero_rl.hub.journal_reader import JournalReader, Sample
from hetero_rl.wire.messages import Event, JoinRequest, Purpose, RunRequest

__all__ = ["MOST_SAMPLES", "Probe", "RunData", "Sequences", "read_run", "sample_columns"]

MOST_SAMPLES = 2048
"""Sequences whose tokens are read: enough for percentages, few enough for seconds."""

Names = npt.NDArray[np.str_]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """Every sequence of a committed step [S], in the order of training."""

    step: Integers
    backend: Names
    numerics_id: Names
    worker: Names
    length: Integers
    """Completion tokens."""
    lag: Integers
    """Optimizer steps between the weights of the oldest token and the step."""
    reward: Floats
    advantage: Floats
    log_importance_ratio: Floats
    """log W: log pi/mu of the whole sequence, nats."""
    coefficient: Floats
    """Mean over the tokens of what multiplied the advantage."""
    mean_absolute_gap: Floats
    """Mean |log mu - log pi| of a token, nats."""
    max_absolute_gap: Floats
    disposition: Integers
    staleness_log_ratio: Floats
    """log pi/pi_old; NaN where pi_old was not recomputed."""
    chip_log_ratio: Floats
    """log pi_old/mu; NaN where pi_old was not recomputed."""

    def __len__(self) -> int:
        """S."""
        return len(self.step)

    def where(self, chosen: npt.NDArray[np.bool_]) -> "Sequences":
        """Those of a mask [S]."""
        return Sequences(
            **{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)}
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """How one worker scored one probe card; differences are trainer minus worker, nats for a token."""

    worker_name: str
    numerics_id: str
    weight_version: int
    mean_absolute_difference: float
    max_absolute_difference: float
    mean_difference: float
    tokens: int
    accepted: bool
    occurred_at: float
    """Seconds since the epoch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """All that an audit reads."""

    request: RunRequest
    committed_step: int
    sequences: Sequences
    samples: tuple[Sample, ...]
    """Trained sequences whose tokens are kept, at most `MOST_SAMPLES`."""
    probes: tuple[Probe, ...]
    workers: tuple[JoinRequest, ...]
    events: tuple[Event, ...]
    counters: Mapping[str, int]
    version_steps: Mapping[int, int]
    """Optimizer steps in each weight version."""

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends with trained sequences, by name."""
        return tuple(sorted(set(self.sequences.backend.tolist())))

    def backend_of(self, worker_name: str) -> str:
        """Backend of a worker that joined."""
        for worker in self.workers:
            if worker.worker_name == worker_name:
                return worker.backend
        return "unknown"


def read_run(reader: JournalReader) -> RunData:
    """Reads a run.

    Raises:
        ConfigError: No trainer opened it, or no step was committed yet.
        StorageError: The journal cannot be read, or something in it is damaged.
    """
    reader.require_sound()
    run = reader.run()
    if run is None:
        raise ConfigError("this journal has no run: no trainer has opened one, so there is nothing to audit")
    sequences = _columns(reader.trained_sequences())
    if sequences is None:
        raise ConfigError(
            f"run {run.request.run_id!r} has no committed step with outcomes: audit it after its first step"
        )
    samples = [
        sample
        for sample in reader.samples(purpose=Purpose.TRAIN, limit=MOST_SAMPLES)
        if sample.trainer_log_probs is not None
        and sample.log_probs is not None
        and sample.outcome is not None
    ]
    return RunData(
        request=run.request,
        committed_step=run.committed_step,
        sequences=sequences,
        samples=tuple(samples),
        probes=tuple(map(_probe, reader.probes())),
        workers=reader.workers(),
        events=reader.events(),
        counters=reader.counters(),
        version_steps={row.version: row.step for row, _ in reader.versions()},
    )


def _probe(row: tuple[Any, ...]) -> Probe:
    fields = [field.name for field in dataclasses.fields(Probe)]
    named = dict(zip(fields, row, strict=True))
    return Probe(**{**named, "accepted": bool(named["accepted"])})


def _columns(rows: Iterator[tuple[Any, ...]]) -> Sequences | None:
    """Rows to columns, a few thousand at a time: a run of any length fits."""
    names = [field.name for field in dataclasses.fields(Sequences)]
    parts: list[dict[str, np.ndarray]] = []
    block: list[tuple[object, ...]] = []
    for row in rows:
        block.append(tuple(row))
        if len(block) == 8192:
            parts.append(_block(names, block))
            block = []
    if block:
        parts.append(_block(names, block))
    if not parts:
        return None
    return Sequences(**{name: np.concatenate([part[name] for part in parts]) for name in names})


def _block(names: Sequence[str], block: Sequence[tuple[object, ...]]) -> dict[str, np.ndarray]:
    texts = {"backend", "numerics_id", "worker"}
    integers = {"step", "length", "lag", "disposition"}
    columns = {}
    for name, values in zip(names, zip(*block, strict=True), strict=True):
        if name in texts:
            columns[name] = np.array(values, dtype=np.str_)
        elif name in integers:
            columns[name] = np.array(values, dtype=np.int64)
        else:
            columns[name] = np.array(
                [np.nan if value is None else value for value in values], dtype=np.float64
            )
    return columns


def sample_columns(samples: Sequence[Sample]) -> PairColumns:
    """The tokens of samples as the diagnosis reads them: the trainer's log-probabilities and the worker's."""
    lengths = [len(sample.token_ids) // 4 for sample in samples]
    prompts = [len(sample.prompt_token_ids) // 4 for sample in samples]
    return PairColumns(
        lengths=np.array(lengths, dtype=np.int64),
        reference=_floats([sample.trainer_log_probs for sample in samples]),
        measured=_floats([sample.log_probs for sample in samples]),
        token_ids=np.concatenate([np.frombuffer(sample.token_ids, "<i4") for sample in samples]).astype(
            np.int64
        ),
        positions=np.concatenate(
            [np.arange(start, start + length) for start, length in zip(prompts, lengths, strict=True)]
        ).astype(np.int64),
    )


def _floats(columns: Sequence[bytes | None]) -> Floats:
    return np.concatenate([np.frombuffer(column or b"", "<f4") for column in columns]).astype(np.float64)
