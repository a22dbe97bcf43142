"""Why one backend differs from the trainer: the right tokens for each suspicion, and what the trainer gives under it."""

from collections.abc import Iterator, Sequence

import numpy as np

from hetero_rl.calibration.alternatives import Alternative
from hetero_rl.calibration.columns import Floats
from hetero_rl.calibration.diagnosis import diagnose
from hetero_rl.calibration.measure import (
    Measured,
    SubjectMeasurement,
    columns_of,
    completion_part,
    sampled_columns,
)
from hetero_rl.calibration.reference import Reference, Scores
from hetero_rl.calibration.signatures import RESOLUTION
from hetero_rl.calibration.subject import Sampled
from hetero_rl.reports.findings import Finding

__all__ = ["investigate"]

_TOP_PS = (0.8, 0.9, 0.95)
_SEARCHED_TOKENS = 600
_SUSPICIOUS = 1.5  # times the gap before the update
_UNSPECIFIC = {"numerics_or_weights", "distribution_or_weights", "too_little_data"}


def investigate(
    measured: Measured, subject: SubjectMeasurement, reference: Reference, scores: Scores, floor: float
) -> list[Finding]:
    """Findings about one subject against the trainer, specific causes first, each cause once.

    Args:
        measured: The measurement.
        subject: One of its subjects.
        reference: Holds A and B.
        scores: The trainer's for all sequences of the measurement under A.
        floor: Mean |gap| that the declared data types explain.
    """
    name = f"{subject.name} against trainer"
    found = [
        *_after_update(measured, subject, reference, scores, floor, name),
        *_prefix_cache(subject, reference, floor, name),
        *_temperature(measured, subject, reference, floor, name),
        *_sampled(subject, reference, floor, name),
        *_scored(measured, subject, scores, floor, name),
    ]
    return _once(found)


def _once(found: Sequence[Finding]) -> list[Finding]:
    """Each code once; what names no cause only when nothing else does."""
    unique = list({finding.code: finding for finding in reversed(found)}.values())[::-1]
    specific = [finding for finding in unique if finding.code not in _UNSPECIFIC]
    # Rounding is real but explains little: it does not silence what else is there.
    causes = [finding for finding in specific if not finding.code.startswith("rounded")]
    rest = [finding for finding in unique if finding.code in _UNSPECIFIC]
    return [
        *causes,
        *(finding for finding in specific if finding not in causes),
        *([] if causes else rest[:1]),
    ]


def _whole(samples: Sequence[Sampled]) -> list[tuple[int, ...]]:
    return [(*sample.prompt, *sample.token_ids) for sample in samples]


def _sampled(subject: SubjectMeasurement, reference: Reference, floor: float, name: str) -> list[Finding]:
    samples = subject.sampled
    scores = reference.score(_whole(samples), "A", top_ps=_TOP_PS)
    alternatives = [
        Alternative(
            code="top_p_renormalised", detail=f" (top_p {top_p})", log_probs=completion_part(samples, column)
        )
        for top_p, column in scores.truncated.items()
    ]
    pair = sampled_columns(samples, completion_part(samples, scores.log_probs))
    return diagnose(pair, floor=floor, alternatives=alternatives, subject=name)


def _temperature(
    measured: Measured, subject: SubjectMeasurement, reference: Reference, floor: float, name: str
) -> list[Finding]:
    samples, temperature = subject.tempered, measured.plan.tempered
    if not samples:
        return []
    twice = temperature * temperature
    scores = reference.score(_whole(samples), "A", temperatures=(temperature, twice))
    once, squared, raw = (
        completion_part(samples, column)
        for column in (scores.tempered[temperature], scores.tempered[twice], scores.log_probs)
    )
    detail = f"{temperature:g} was asked for"
    alternatives = [
        Alternative(code="temperature_applied_twice", detail=detail, log_probs=squared),
        Alternative(code="temperature_not_applied", detail=detail, log_probs=raw),
    ]
    # A temperature below 1 stretches logits and their errors.
    return diagnose(
        sampled_columns(samples, once),
        floor=floor / temperature,
        alternatives=alternatives,
        subject=name,
    )


def _scored(
    measured: Measured, subject: SubjectMeasurement, scores: Scores, floor: float, name: str
) -> list[Finding]:
    ids = [sequence.token_ids for sequence in measured.sequences]
    return diagnose(columns_of(ids, scores.log_probs, subject.scored), floor=floor, subject=name)


def _after_update(
    measured: Measured,
    subject: SubjectMeasurement,
    reference: Reference,
    scores: Scores,
    floor: float,
    name: str,
) -> list[Finding]:
    """Under B: stale weights, a stale head; and, when neither explains a gap that B brought, each tensor in turn."""
    ids = [measured.sequences[index].token_ids for index in measured.checked]
    under_b = reference.score(ids, "B").log_probs
    pair = columns_of(ids, under_b, subject.scored_under_b)
    old = reference.score(ids, "A").log_probs
    alternatives = [Alternative(code="stale_weights", detail="1 (A)", log_probs=old)]
    if (head := reference.tied_head) is not None:
        left = reference.score(ids, reference.mixed("B", "A", [head])).log_probs
        alternatives.append(Alternative(code="tied_head_stale", detail="1 (A)", log_probs=left))
    found = diagnose(pair, floor=floor, alternatives=alternatives, subject=name)
    named = any("stale" in finding.code for finding in found)
    before = _checked_gap(measured, subject, scores)
    if named or float(np.abs(pair.usable.gap).mean()) <= _SUSPICIOUS * before + RESOLUTION:
        return [finding for finding in found if named or finding.code not in _UNSPECIFIC]
    return _tensor_by_tensor(measured, subject, reference, floor, name) or found


def _tensor_by_tensor(
    measured: Measured, subject: SubjectMeasurement, reference: Reference, floor: float, name: str
) -> list[Finding]:
    """One forward pass for each tensor of the model, over a few sequences."""
    chosen = list(_few(measured))
    ids = [measured.sequences[measured.checked[place]].token_ids for place in chosen]
    pair = columns_of(
        ids, reference.score(ids, "B").log_probs, [subject.scored_under_b[place] for place in chosen]
    )
    alternatives = [
        Alternative(
            code="stale_tensor",
            detail=f"{named.name} is still that of version 1 (A)",
            log_probs=reference.score(
                ids, reference.mixed("B", "A", [named.name, *named.tied_names])
            ).log_probs,
        )
        for named in reference.named
    ]
    found = diagnose(pair, floor=floor, alternatives=alternatives, subject=name)
    return [finding for finding in found if "stale" in finding.code]


def _few(measured: Measured) -> Iterator[int]:
    tokens = 0
    for place, index in enumerate(measured.checked):
        if tokens < _SEARCHED_TOKENS:
            yield place
        tokens += len(measured.sequences[index].token_ids)


def _checked_gap(measured: Measured, subject: SubjectMeasurement, scores: Scores) -> float:
    """Mean |gap| of the checked sequences under A, before any update."""
    ends = np.cumsum([len(sequence.token_ids) - 1 for sequence in measured.sequences])
    parts: list[Floats] = np.split(scores.log_probs, ends[:-1])
    gaps = np.concatenate([parts[index] - subject.scored[index] for index in measured.checked])
    return float(np.abs(gaps[np.isfinite(gaps)]).mean())


def _prefix_cache(
    subject: SubjectMeasurement, reference: Reference, floor: float, name: str
) -> list[Finding]:
    samples = subject.sampled_after_update
    prompts = [sample.prompt for sample in samples]
    completions = [sample.token_ids for sample in samples]
    right = completion_part(samples, reference.score(_whole(samples), "B").log_probs)
    kept = reference.kept_cache(prompts, completions, "A", "B")
    old = completion_part(samples, reference.score(_whole(samples), "A").log_probs)
    alternatives = [
        Alternative(code="prefix_cache_kept", detail="1 (A)", log_probs=kept),
        Alternative(code="stale_weights", detail="1 (A)", log_probs=old),
    ]
    found = diagnose(sampled_columns(samples, right), floor=floor, alternatives=alternatives, subject=name)
    return [finding for finding in found if finding.code not in _UNSPECIFIC]
