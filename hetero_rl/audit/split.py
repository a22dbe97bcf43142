"""log W taken apart: what the chip adds, what staleness adds, and how both grow.

    log W = log pi/pi_old (staleness) + log pi_old/mu (chip)

Three witnesses, from the strongest to the cheapest:
    recomputed    the trainer evaluated pi_old: both parts of a sequence are known, and so is their covariance
    lag 0         no step lies between sampling and training: all of log W is chip
    probe cards   a few fixed sequences scored after each weight update: chip per token, at every version

Without a recomputation the parts of a stale sequence are not known one by one. Then the variance of log W at lag 0, scaled by length, stands for
the chip part of all, and the two are taken as uncorrelated; the report says so.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hetero_rl.audit.run_data import Probe, RunData, Sequences
from hetero_rl.calibration.columns import Floats, Integers

__all__ = ["BackendSplit", "Exact", "LagRow", "LengthRow", "TimeRow", "effective_share", "split_backend"]

_LENGTH_BINS = 8
_TIME_BINS = 40
_LEAST = 8
"""Fewer sequences than this make no row."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """The sequences of one lag."""

    lag: int
    sequences: int
    mean_length: float
    mean_log_ratio: float
    """Mean log W, nats."""
    variance: float
    """Variance of log W, nats²."""
    chip_variance: float
    """Of it, what the chip explains; NaN when nothing tells."""
    mean_absolute_gap: float
    """Mean |log mu - log pi| of a token, nats."""
    effective_share: float
    """(sum W)² / (n sum W²)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """The sequences of one bin of lengths."""

    mean_length: float
    sequences: int
    variance: float
    chip_variance: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """Some steps in a row."""

    first_step: int
    last_step: int
    mean_absolute_gap: float
    probe_gap: float
    """Mean |difference| of the probe cards of these steps; NaN without one."""
    mean_lag: float
    variance: float
    effective_share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Both parts of the recomputed sequences."""

    sequences: int
    chip_variance: float
    staleness_variance: float
    covariance: float
    """The cross term is twice this."""
    chip_mean: float
    staleness_mean: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendSplit:
    """One backend, or all of them together."""

    backend: str
    """Empty for all."""
    numerics_ids: tuple[str, ...]
    sequences: int
    tokens: int
    mean_length: float
    mean_log_ratio: float
    variance: float
    effective_share: float
    chip_per_token: float
    """Variance of log W that one token adds at lag 0, nats²; NaN without lag-0 sequences."""
    chip_share: float
    """Share of the variance of log W that the chip explains, 0 to 1; NaN when nothing tells."""
    witness: str
    """What chip_share rests on: "recomputed", "lag 0" or "none"."""
    exact: Exact | None
    lags: tuple[LagRow, ...]
    lengths: tuple[LengthRow, ...]
    over_time: tuple[TimeRow, ...]
    probes: int
    probe_mean_gap: float
    """Mean over the accepted probe cards of the mean |difference| of a token; NaN without one."""
    probe_bias: float
    """Mean of the signed difference, trainer minus worker."""
    worst_probe: float
    """Largest |difference| of one token on any card."""


def split_backend(data: RunData, backend: str) -> BackendSplit:
    """Takes log W of one backend apart; all backends together for the empty name."""
    everything = data.sequences
    chosen = everything if not backend else everything.where(everything.backend == backend)
    probes = [probe for probe in data.probes if not backend or data.backend_of(probe.worker_name) == backend]
    exact = _exact(chosen)
    per_token = _chip_per_token(chosen)
    variance = _variance(chosen.log_importance_ratio)
    share, witness = _chip_share(chosen, exact, per_token, variance)
    accepted = [probe for probe in probes if probe.accepted]
    return BackendSplit(
        backend=backend,
        numerics_ids=tuple(sorted(set(chosen.numerics_id.tolist()))),
        sequences=len(chosen),
        tokens=int(chosen.length.sum()),
        mean_length=float(chosen.length.mean()),
        mean_log_ratio=float(chosen.log_importance_ratio.mean()),
        variance=variance,
        effective_share=effective_share(chosen.log_importance_ratio),
        chip_per_token=per_token,
        chip_share=share,
        witness=witness,
        exact=exact,
        lags=_by_lag(chosen, per_token),
        lengths=_by_length(chosen, per_token),
        over_time=_over_time(chosen, probes, data),
        probes=len(probes),
        probe_mean_gap=_mean([probe.mean_absolute_difference for probe in accepted]),
        probe_bias=_mean([probe.mean_difference for probe in accepted]),
        worst_probe=max((probe.max_absolute_difference for probe in probes), default=float("nan")),
    )


def effective_share(log_weights: Floats) -> float:
    """(sum w)² / (n sum w²) of weights given by their logs [n], from 1/n to 1; NaN without any."""
    finite = log_weights[np.isfinite(log_weights)]
    if not len(finite):
        return float("nan")
    weights = np.exp(finite - finite.max())
    return float(weights.sum() ** 2 / (len(weights) * (weights * weights).sum()))


def _exact(sequences: Sequences) -> Exact | None:
    known = np.isfinite(sequences.chip_log_ratio) & np.isfinite(sequences.staleness_log_ratio)
    if int(known.sum()) < _LEAST:
        return None
    chip, staleness = sequences.chip_log_ratio[known], sequences.staleness_log_ratio[known]
    return Exact(
        sequences=int(known.sum()),
        chip_variance=_variance(chip),
        staleness_variance=_variance(staleness),
        covariance=float(np.cov(chip, staleness)[0, 1]),
        chip_mean=float(chip.mean()),
        staleness_mean=float(staleness.mean()),
    )


def _chip_per_token(sequences: Sequences) -> float:
    """Least squares of (log W)² on length through the origin, at lag 0: the variance that one token adds."""
    fresh = (sequences.lag == 0) & np.isfinite(sequences.log_importance_ratio)
    if int(fresh.sum()) < _LEAST:
        return float("nan")
    length = sequences.length[fresh].astype(np.float64)
    centred = sequences.log_importance_ratio[fresh] - sequences.log_importance_ratio[fresh].mean()
    return float((length @ (centred * centred)) / (length @ length))


def _chip_share(
    sequences: Sequences, exact: Exact | None, per_token: float, variance: float
) -> tuple[float, str]:
    if exact is not None:
        whole = exact.chip_variance + exact.staleness_variance
        return (exact.chip_variance / whole if whole > 0 else 1.0), "recomputed"
    if np.isnan(per_token):
        return float("nan"), "none"
    expected = per_token * float(sequences.length.mean())
    return (min(1.0, expected / variance) if variance > 0 else 1.0), "lag 0"


def _by_lag(sequences: Sequences, per_token: float) -> tuple[LagRow, ...]:
    rows = []
    for lag in np.unique(sequences.lag).tolist():
        part = sequences.where(sequences.lag == lag)
        if len(part) < _LEAST:
            continue
        rows.append(
            LagRow(
                lag=int(lag),
                sequences=len(part),
                mean_length=float(part.length.mean()),
                mean_log_ratio=float(part.log_importance_ratio.mean()),
                variance=_variance(part.log_importance_ratio),
                chip_variance=_chip_variance(part, per_token),
                mean_absolute_gap=float(part.mean_absolute_gap.mean()),
                effective_share=effective_share(part.log_importance_ratio),
            )
        )
    return tuple(rows)


def _by_length(sequences: Sequences, per_token: float) -> tuple[LengthRow, ...]:
    edges = np.unique(np.quantile(sequences.length, np.linspace(0, 1, _LENGTH_BINS + 1)))
    places = np.clip(np.searchsorted(edges, sequences.length, side="right") - 1, 0, max(len(edges) - 2, 0))
    rows = []
    for place in range(max(len(edges) - 1, 1)):
        part = sequences.where(places == place)
        if len(part) >= _LEAST:
            rows.append(
                LengthRow(
                    mean_length=float(part.length.mean()),
                    sequences=len(part),
                    variance=_variance(part.log_importance_ratio),
                    chip_variance=_chip_variance(part, per_token),
                )
            )
    return tuple(rows)


def _chip_variance(part: Sequences, per_token: float) -> float:
    known = part.chip_log_ratio[np.isfinite(part.chip_log_ratio)]
    return _variance(known) if len(known) >= _LEAST else per_token * float(part.length.mean())


def _over_time(sequences: Sequences, probes: Sequence[Probe], data: RunData) -> tuple[TimeRow, ...]:
    last = int(sequences.step.max())
    width = max(1, -(-last // _TIME_BINS))
    rows = []
    for first in range(1, last + 1, width):
        inside = (sequences.step >= first) & (sequences.step < first + width)
        if not inside.any():
            continue
        part = sequences.where(inside)
        seen = [
            probe.mean_absolute_difference
            for probe in probes
            if first <= data.version_steps.get(probe.weight_version, -1) + 1 < first + width
        ]
        rows.append(
            TimeRow(
                first_step=first,
                last_step=min(first + width - 1, last),
                mean_absolute_gap=float(part.mean_absolute_gap.mean()),
                probe_gap=_mean(seen),
                mean_lag=float(part.lag.mean()),
                variance=_variance(part.log_importance_ratio),
                effective_share=_mean(_shares_of_steps(part)),
            )
        )
    return tuple(rows)


def _shares_of_steps(sequences: Sequences) -> list[float]:
    """Effective share of each step: weights are compared within a step only, that is where they are used."""
    steps: Integers = np.unique(sequences.step)
    return [effective_share(sequences.log_importance_ratio[sequences.step == step]) for step in steps]


def _variance(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.var(ddof=1)) if len(finite) > 1 else 0.0


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")
