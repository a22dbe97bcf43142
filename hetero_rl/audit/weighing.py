"""What the estimator did with the trajectories, and what every other estimator would have done with the same ones."""

import dataclasses
import math

import numpy as np
import torch

from hetero_rl.audit.run_data import RunData, Sequences
from hetero_rl.audit.split import effective_share
from hetero_rl.errors import ConfigError
from hetero_rl.estimators import Coefficients, Needs, RecordedBatch, list_estimators, make_estimator
from hetero_rl.estimators import effective_share as share_of
from hetero_rl.estimators.registry import estimator_class
from hetero_rl.estimators.stages.pareto import pareto_smooth
from hetero_rl.hub.journal_reader import Sample
from hetero_rl.wire.messages import Disposition

__all__ = ["Alternative", "SignRow", "Weighing", "side_by_side", "weigh"]

_LEAST = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SignRow:
    """The sequences with one sign of the advantage."""

    sign: str
    """ "positive", "negative" or "zero"."""
    sequences: int
    mean_coefficient: float
    effective_share: float
    """(sum c)² / (n sum c²) of the coefficients."""
    silenced: float
    """Share with a coefficient of 0: they did not change the weights."""
    mean_log_ratio: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """What was done with the sequences of one backend, or of all."""

    backend: str
    signs: tuple[SignRow, ...]
    dispositions: dict[str, int]
    effective_sequences: float
    """Mean over the steps of the effective number of sequences of a step."""
    sequences_per_step: float
    silenced: float
    pareto_shape: float
    """k-hat of the raw weights W: above 0.7 their mean cannot be trusted; NaN with too few."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What one estimator, with its paper's defaults, makes of the retained sequences."""

    estimator: str
    mean_positive: float
    """Mean coefficient of sequences with A >= 0."""
    mean_negative: float
    effective_share: float
    silenced: float
    """Share of the sequences with a coefficient of 0 on every token."""
    clamped: float
    """Share of sequences whose log-ratio was held within bounds."""
    note: str = ""
    """Why there are no numbers, or what to know about them."""


def weigh(data: RunData, backend: str) -> Weighing:
    """What the estimator did; all backends together for the empty name."""
    everything = data.sequences
    chosen = everything if not backend else everything.where(everything.backend == backend)
    steps = np.unique(chosen.step)
    effective = [_effective_number(chosen.coefficient[chosen.step == step]) for step in steps]
    names = {member.value: member.name.lower() for member in Disposition}
    values, counts = np.unique(chosen.disposition, return_counts=True)
    finite = chosen.log_importance_ratio[np.isfinite(chosen.log_importance_ratio)]
    return Weighing(
        backend=backend,
        signs=tuple(_signs(chosen)),
        dispositions={
            names.get(int(value), str(value)): int(count) for value, count in zip(values, counts, strict=True)
        },
        effective_sequences=float(np.mean(effective)),
        sequences_per_step=len(chosen) / len(steps),
        silenced=float((chosen.coefficient == 0).mean()),
        pareto_shape=pareto_smooth(torch.from_numpy(finite)).k_hat if len(finite) else math.nan,
    )


def _signs(sequences: Sequences) -> list[SignRow]:
    rows = []
    masks = {
        "positive": sequences.advantage > 0,
        "negative": sequences.advantage < 0,
        "zero": sequences.advantage == 0,
    }
    for sign, mask in masks.items():
        part = sequences.where(mask)
        if len(part) < _LEAST:
            continue
        with np.errstate(divide="ignore"):
            share = effective_share(np.log(part.coefficient))
        rows.append(
            SignRow(
                sign=sign,
                sequences=len(part),
                mean_coefficient=float(part.coefficient.mean()),
                effective_share=share * float((part.coefficient > 0).mean()),
                silenced=float((part.coefficient == 0).mean()),
                mean_log_ratio=float(part.log_importance_ratio.mean()),
            )
        )
    return rows


def _effective_number(coefficients: np.ndarray) -> float:
    square = float((coefficients * coefficients).sum())
    return float(coefficients.sum()) ** 2 / square if square > 0 else 0.0


def side_by_side(data: RunData) -> list[Alternative]:
    """Every estimator on the retained sequences, as one batch, under the policy that trained on each."""
    samples = _usable(data.samples)
    if len(samples) < _LEAST:
        return []
    whole = _whole_groups(samples, data)
    every, grouped = _batch(samples), _batch(whole) if whole else None
    return [_alternative(name, every, grouped) for name in list_estimators()]


def _usable(samples: tuple[Sample, ...]) -> list[Sample]:
    return [sample for sample in samples if len(sample.token_ids) > 0]


def _whole_groups(samples: list[Sample], data: RunData) -> list[Sample]:
    sizes: dict[str, int] = {}
    for sample in samples:
        sizes[sample.group_id] = sizes.get(sample.group_id, 0) + 1
    largest = max(sizes.values())
    limit = data.request.limits.max_group_size
    return [sample for sample in samples if sizes[sample.group_id] == largest and 1 < largest <= limit]


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    recorded: RecordedBatch
    current: torch.Tensor
    positive: torch.Tensor


def _batch(samples: list[Sample]) -> _Batch:
    groups = {
        name: number for number, name in enumerate(dict.fromkeys(sample.group_id for sample in samples))
    }
    rewards, advantages = [], []
    for sample in samples:
        if sample.outcome is None:
            raise AssertionError("only trained sequences come here")
        rewards.append(sample.outcome.reward)
        advantages.append(sample.outcome.advantage)
    recorded = RecordedBatch(
        behavior_log_probs=_column([sample.log_probs for sample in samples]),
        lengths=torch.tensor([len(sample.token_ids) // 4 for sample in samples]),
        group_ids=torch.tensor([groups[sample.group_id] for sample in samples]),
        rewards=torch.tensor(rewards, dtype=torch.float64),
    )
    current = _column([sample.trainer_log_probs for sample in samples])
    return _Batch(recorded, current, torch.tensor(advantages) >= 0)


def _column(columns: list[bytes | None]) -> torch.Tensor:
    flat = np.concatenate([np.frombuffer(column or b"", "<f4") for column in columns])
    return torch.from_numpy(flat.astype(np.float64))


def _alternative(name: str, every: _Batch, grouped: _Batch | None) -> Alternative:
    preset = estimator_class(name)
    if preset.method_needs is Needs.RECORDED_GROUP and grouped is None:
        return _without_numbers(name, "needs whole groups, and none is retained whole")
    needs_groups = preset.min_group_size > 1 or preset.method_needs is Needs.RECORDED_GROUP
    batch = grouped if needs_groups and grouped is not None else every
    try:
        found = _coefficients(name, batch)
    except (ConfigError, ValueError) as error:
        return _without_numbers(name, str(error))
    means = found.sequence_means
    return Alternative(
        estimator=name,
        mean_positive=_mean(means[batch.positive]),
        mean_negative=_mean(means[~batch.positive]),
        effective_share=share_of(means.log()),
        silenced=float((means == 0).double().mean()),
        clamped=float(found.clamped.double().mean()),
        note="" if batch is every else f"on {len(means)} sequences of whole groups",
    )


def _coefficients(name: str, batch: _Batch) -> Coefficients:
    # A lone sequence has no group to compare with; the coefficient depends on the sign of its advantage only, which is the run's own.
    estimator = make_estimator(name, {**estimator_class(name).example_options, "advantage": "none"})
    prepared = estimator.prepare(batch.recorded, batch.current)
    signed = dataclasses.replace(prepared, advantages=torch.where(batch.positive, 1.0, -1.0).double())
    return estimator.coefficients(signed, batch.current)


def _without_numbers(name: str, note: str) -> Alternative:
    return Alternative(
        estimator=name,
        mean_positive=math.nan,
        mean_negative=math.nan,
        effective_share=math.nan,
        silenced=math.nan,
        clamped=math.nan,
        note=note,
    )


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean()) if values.numel() else math.nan
