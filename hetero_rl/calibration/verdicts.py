"""What a backend does besides its gap: repeatability, batch, decode, return from updates, usable length. Findings of it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hetero_rl.calibration.columns import Floats
from hetero_rl.calibration.diagnosis import expected_floor
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.calibration.usable_length import LONGEST, UsableLength
from hetero_rl.reports.findings import Finding, Verdict
from hetero_rl.reports.text import format_number

__all__ = [
    "Behaviour",
    "Difference",
    "behaviour_findings",
    "difference",
    "length_findings",
    "platform_advice",
]

_ADVICE = {
    "nvidia": "set inference.worker.profile to reproducible (VLLM_BATCH_INVARIANT=1, TF32 off)",
    "amd": "set inference.worker.profile to reproducible (VLLM_ROCM_USE_AITER=0, VLLM_BATCH_INVARIANT=1)",
    "ascend": "set inference.worker.profile to reproducible (HCCL_DETERMINISTIC=strict, LCCL_DETERMINISTIC=1, "
    "ATB_MATMUL_SHUFFLE_K_ENABLE=0, weight_nz_mode 0, eager instead of graph mode)",
    "cpu": "use float32, one thread, and no compiled kernels",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Between two reports of the same tokens, in nats."""

    tokens: int
    mean_absolute: float
    maximum: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a backend does with the same tokens twice."""

    repeat: Difference
    """The same request twice."""
    batch: Difference
    """Alone and in one request with others."""
    decode: Difference
    """Reported when sampled, and scored afterwards."""
    returned: Difference
    """Before and after A, B, A."""


def difference(first: Sequence[Floats], second: Sequence[Floats]) -> Difference:
    """Of two lists of columns; tokens without a finite difference count as infinitely far."""
    if not first:
        return Difference(0, 0.0, 0.0)
    gap = np.abs(np.concatenate(list(first)) - np.concatenate(list(second)))
    gap = np.where(np.isnan(gap), np.inf, gap)
    return Difference(len(gap), float(gap.mean()), float(gap.max()))


def platform_advice(vendor: str) -> str:
    """What to switch off on a platform to make its numbers repeatable."""
    return _ADVICE.get(vendor, _ADVICE["cpu"])


def behaviour_findings(
    name: str, vendor: str, data_type: str, behaviour: Behaviour, thresholds: Thresholds
) -> list[Finding]:
    """Findings where a difference is above its threshold."""
    floor = expected_floor(data_type)
    advice = platform_advice(vendor)
    limits = (
        (
            behaviour.returned,
            thresholds.returned + behaviour.repeat.mean_absolute,
            Verdict.UNUSABLE,
            "not_reversible",
            "after loading A, B and A again it does not score as it did under A: something is left over from an update",
            "Look at what the engine derives from weights when it loads them: packed copies, tied heads, caches.",
        ),
        (
            behaviour.repeat,
            thresholds.repeat,
            Verdict.CAUTION,
            "not_deterministic",
            "the same request gives other log-probabilities the second time",
            f"To find out why, {advice}.",
        ),
        (
            behaviour.batch,
            (thresholds.batch or floor / 2) + behaviour.repeat.mean_absolute,
            Verdict.CAUTION,
            "batch_variant",
            "log-probabilities depend on what else is in the batch",
            f"If that matters, {advice}; otherwise calibrate with the batch sizes of the run.",
        ),
        (
            behaviour.decode,
            (thresholds.decode or floor) + behaviour.repeat.mean_absolute,
            Verdict.CAUTION,
            "decode_differs",
            "log-probabilities reported while sampling differ from those of scoring the same tokens",
            f"Decode and prefill use different kernels, or the reported value is another one: {advice}, and compare again.",
        ),
    )
    return [
        Finding(
            verdict=verdict,
            code=code,
            cause=cause,
            evidence=(
                (
                    f"mean |difference| {format_number(found.mean_absolute)} nats, largest {format_number(found.maximum)}, over "
                    f"{found.tokens} tokens; {format_number(limit)} is allowed"
                ),
            ),
            next_step=step,
            subject=name,
        )
        for found, limit, verdict, code, cause, step in limits
        if found.tokens and found.mean_absolute > limit
    ]


def length_findings(
    name: str,
    usable: Sequence[UsableLength],
    estimator: str,
    longest: int,
    thresholds: Thresholds,
) -> list[Finding]:
    """A finding when the run's completions are longer than its estimator can use.

    Args:
        name: What it is about.
        usable: Of every sequence-level estimator.
        estimator: The one that the run uses.
        longest: Longest completion of the run in tokens.
        thresholds: What counts as too short.
    """
    own = [length for length in usable if length.estimator == estimator]
    if not own:
        return []
    worst = min(own, key=lambda length: length.tokens)
    if worst.low >= longest:
        return []
    verdict = Verdict.UNUSABLE if worst.tokens < thresholds.unusable_share * longest else Verdict.CAUTION
    sign = "A >= 0" if worst.advantage > 0 else "A < 0"
    others = sorted(
        {
            other.estimator
            for other in usable
            if min(one.low for one in usable if one.estimator == other.estimator) >= longest
        }
    )
    instead = f"use {' or '.join(others)}, or " if others else ""
    return [
        Finding(
            verdict=verdict,
            code="short_usable_length",
            cause=f"{estimator} keeps an effective share of {worst.floor:g} up to {_tokens(worst.tokens)} tokens only; the run's "
            f"completions have up to {longest}",
            evidence=(
                (
                    f"usable length {_tokens(worst.tokens)}, 90 % bounds {_tokens(worst.low)} to {_tokens(worst.high)} tokens, "
                    f"for {sign}"
                ),
            ),
            next_step=f"Make the gap smaller at its source; or {instead}set sampling.max_new_tokens to {max(worst.low, 1)}; or "
            "mask sequences whose log-ratio is far from 0 (estimator seq_mask_tis).",
            subject=name,
        )
    ]


def _tokens(count: int) -> str:
    return f"{LONGEST:,} or more" if count >= LONGEST else f"{count:,}"
