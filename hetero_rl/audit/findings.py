"""What a person should know about a run, most important first. Rules on numbers; the texts say what to do."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hetero_rl.audit.run_data import RunData, sample_columns
from hetero_rl.audit.split import BackendSplit
from hetero_rl.audit.weighing import Weighing
from hetero_rl.calibration.diagnosis import LEAST_TOKENS, declared_type, diagnose, expected_floor
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.reports.findings import Finding, Verdict
from hetero_rl.reports.text import format_number

__all__ = ["find"]

_MOST_SILENCED = 0.5
_MOST_K_HAT = 0.7
_MOST_REFUSED = 0.01
_UNBOUNDED = frozenset({"seq_is", "snis", "vcpo"})
"""Estimators without a bound on what one sequence can weigh."""
_LEAST_SEQUENCES = 32
"""Fewer sequences than this say nothing about a share."""
_PROBE_FLOOR = 1e-3
"""Mean |difference| on a probe card below which a growing card is no news, nats."""


def find(
    data: RunData, splits: Sequence[BackendSplit], weighings: Sequence[Weighing], thresholds: Thresholds
) -> list[Finding]:
    """The findings of a run.

    Args:
        data: What the run keeps.
        splits: Of each backend.
        weighings: Of each backend.
        thresholds: What counts as too much.
    """
    found = [
        *_chips(data, splits),
        *_cards(data),
        *(finding for split in splits for finding in _shares(split, thresholds)),
        *(finding for weighing in weighings for finding in _weights(weighing, _estimator(data))),
        *_refusals(data),
        *_quarantines(data),
    ]
    return sorted(found, key=lambda finding: -finding.verdict)


def _chips(data: RunData, splits: Sequence[BackendSplit]) -> Iterator[Finding]:
    """What the tokens of fresh sequences say about each backend's numerics: no staleness is in them."""
    types = {worker.backend: declared_type(worker.numerics) for worker in data.workers}
    for split in splits:
        fresh = [
            sample
            for sample in data.samples
            if sample.backend == split.backend and sample.outcome is not None and sample.outcome.lag == 0
        ]
        if sum(len(sample.token_ids) // 4 for sample in fresh) < LEAST_TOKENS:
            continue
        floor = expected_floor("float32", types.get(split.backend, "bfloat16"))
        # The trainer computes in its own data type; a float32 backend against it still shows that of the trainer.
        floor = max(floor, expected_floor("bfloat16") / 10)
        yield from diagnose(
            sample_columns(fresh), floor=floor, subject=f"{split.backend} against the trainer"
        )


def _cards(data: RunData) -> Iterator[Finding]:
    """Workers whose last cards differ much more than their first ones did: something changed on the way."""
    by_worker: dict[str, list[float]] = {}
    for probe in data.probes:
        by_worker.setdefault(probe.worker_name, []).append(probe.mean_absolute_difference)
    for worker, gaps in sorted(by_worker.items()):
        third = len(gaps) // 3
        if third < 3:
            continue
        first, last = float(np.median(gaps[:third])), float(np.median(gaps[-third:]))
        if last > 10 * first and last > _PROBE_FLOOR:
            yield Finding(
                verdict=Verdict.CAUTION,
                code="probe_cards_drift",
                cause="its probe cards drifted away from the trainer during the run",
                evidence=(
                    f"median mean |difference| of the first {third} cards: {format_number(first)} nats",
                    f"of the last {third}: {format_number(last)} nats",
                ),
                next_step="Run `hetero-rl calibrate` against this worker: repeated updates A, B, A show whether weights are left behind.",
                subject=worker,
            )


def _shares(split: BackendSplit, thresholds: Thresholds) -> Iterator[Finding]:
    shares = [row.effective_share for row in split.over_time if math.isfinite(row.effective_share)]
    if split.sequences < _LEAST_SEQUENCES or not shares:
        return
    worst = min(shares)
    below = sum(share < thresholds.ess_floor for share in shares)
    if below * 2 <= len(shares):
        return
    chip = split.chip_share
    if math.isnan(chip):
        source, step = (
            "nothing tells whether it is the chip or staleness",
            "Set estimator.recompute_old_log_probs to measure both parts.",
        )
    elif chip > 0.5:
        source = f"{100 * chip:.0f} % of it is the chip"
        step = f"Run `hetero-rl calibrate --backends {split.backend}` for its usable length, or mask at the sequence level."
    else:
        source = f"{100 * (1 - chip):.0f} % of it is staleness"
        step = "Lower staleness.max_lag or the learning rate, or add workers, before anything about the chip."
    yield Finding(
        verdict=Verdict.CAUTION,
        code="low_effective_share",
        cause=f"log W spreads so far that few sequences rule the raw weights, and {source}",
        evidence=(
            f"effective share below {thresholds.ess_floor:g} in {below} of {len(shares)} periods, {worst:.3f} at worst",
            f"variance of log W {format_number(split.variance)} nats², mean length {split.mean_length:.0f} tokens",
        ),
        next_step=step,
        subject=split.backend,
    )


def _weights(weighing: Weighing, estimator: str) -> Iterator[Finding]:
    if weighing.silenced > _MOST_SILENCED:
        yield Finding(
            verdict=Verdict.CAUTION,
            code="mostly_silenced",
            cause="the estimator silenced most sequences",
            evidence=(f"{100 * weighing.silenced:.1f} % of the sequences have a coefficient of 0",),
            next_step="Compare the estimators below: one with a soft weight keeps a signal where a mask drops it.",
            subject=weighing.backend,
        )
    if weighing.pareto_shape > _MOST_K_HAT and estimator in _UNBOUNDED:
        yield Finding(
            verdict=Verdict.CAUTION,
            code="heavy_tail",
            cause=f"the raw weights have a tail too heavy for their mean to be trusted, and {estimator} uses them as they are",
            evidence=(f"k-hat {weighing.pareto_shape:.2f}, the bound is {_MOST_K_HAT:g}",),
            next_step="Use an estimator with bounded weights (vespo, tis, icepop), not plain sequence weights.",
            subject=weighing.backend,
        )


def _estimator(data: RunData) -> str:
    """Name of the run's estimator; empty when its settings do not say."""
    try:
        return str(json.loads(data.request.config_json)["estimator"]["name"])
    except (ValueError, KeyError, TypeError):
        return ""


def _refusals(data: RunData) -> Iterator[Finding]:
    refused = _by_cause(data.counters)
    total = sum(refused.values())
    if total == 0:
        return
    share = total / (total + len(data.sequences))
    yield Finding(
        verdict=Verdict.CAUTION if share > _MOST_REFUSED else Verdict.OK,
        code="refused",
        cause="the hub refused messages of workers",
        evidence=tuple(
            f"{count} x {name}" for name, count in sorted(refused.items(), key=lambda item: -item[1])
        ),
        next_step="`hetero-rl status` and the hub's log name the worker; a wrong length or a positive log-probability is an engine's fault.",
    )


def _by_cause(counters: Mapping[str, int]) -> dict[str, int]:
    # A lease that ended while its results were on their way is how a killed worker looks, and no fault of data.
    normal = {"refused_lease_lost", "refused_fenced", "refused_not_found"}
    return {
        name.removeprefix("refused_"): count
        for name, count in counters.items()
        if name.startswith("refused_") and name not in normal
    }


def _quarantines(data: RunData) -> Iterator[Finding]:
    failed = [probe for probe in data.probes if not probe.accepted]
    for worker in sorted({probe.worker_name for probe in failed}):
        own = [probe for probe in failed if probe.worker_name == worker]
        yield Finding(
            verdict=Verdict.CAUTION,
            code="probe_card_failed",
            cause="it failed a probe card and was kept from generating",
            evidence=tuple(
                f"version {probe.weight_version}: mean |difference| {format_number(probe.mean_absolute_difference)} nats"
                for probe in own[:5]
            ),
            next_step="Its trajectories were not trained on. Look at the loader of that worker, then readmit it.",
            subject=worker,
        )
