"""From what was measured to a calibration: statistics, laws, lengths, behaviour and findings of every pair."""

import base64
import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from hetero_rl.calibration import statistics as st
from hetero_rl.calibration.columns import Floats, PairColumns
from hetero_rl.calibration.diagnosis import declared_type, diagnose, expected_floor
from hetero_rl.calibration.held_out import HeldOut, held_out
from hetero_rl.calibration.investigate import investigate
from hetero_rl.calibration.law import RatioLaw, fit_law, measured_crossing, measured_shares
from hetero_rl.calibration.measure import (
    Measured,
    SubjectMeasurement,
    columns_of,
    completion_part,
    sampled_columns,
)
from hetero_rl.calibration.reference import Reference, Scores
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.calibration.usable_length import (
    SEQUENCE_LEVEL,
    UsableLength,
    expected_at,
    usable_lengths,
)
from hetero_rl.calibration.verdicts import Behaviour, behaviour_findings, difference, length_findings
from hetero_rl.reports.findings import Finding

__all__ = ["TRAINER", "Curve", "FixedScores", "Pair", "SourceGap", "analyse", "analyse_scored"]

TRAINER = "trainer"
_CURVE_POINTS = 25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceGap:
    """The gap on what one source wrote."""

    source: str
    temperature: float
    summary: st.GapSummary


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one estimator makes of sequences, against their length."""

    estimator: str
    advantage: int
    lengths: tuple[int, ...]
    effective_shares: tuple[float, ...]
    mean_coefficients: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FixedScores:
    """What a backend gave for the texts that are the same in every calibration of a model."""

    tokens_digest: str
    """SHA-256 of the token ids and of the weights: equal digests, same question."""
    log_probs: str
    """float32, little-endian, base64."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two scorers; the gap is the first one's log-probability minus the second one's."""

    first: str
    second: str
    backend: str
    numerics_id: str
    """Of the second."""
    data_type: str
    summary: st.GapSummary
    sources: tuple[SourceGap, ...]
    positions: tuple[st.Bin, ...]
    probabilities: tuple[st.Bin, ...]
    entropies: tuple[st.Bin, ...]
    worst_tokens: tuple[st.TokenBin, ...]
    first_token: st.GapSummary | None
    last_token: st.GapSummary | None
    sequence_sums: tuple[tuple[int, float, float, float], ...]
    """Tokens, sum of the gap, of |gap| and of its square, of each sequence: what a comparison resamples."""
    law: RatioLaw | None = None
    measured_lengths: tuple[int, ...] = ()
    measured_shares: tuple[float, ...] = ()
    """Effective share of raw importance weights as measured, at each of these lengths."""
    measured_crossing: int | None = None
    """Length at which the measured share of raw weights falls below the floor; None: not within what was sampled."""
    held_out: tuple[HeldOut, ...] = ()
    """Crossings predicted from half of the completions and measured in the others."""
    usable: tuple[UsableLength, ...] = ()
    curves: tuple[Curve, ...] = ()
    behaviour: Behaviour | None = None
    fixed: FixedScores | None = None
    findings: tuple[Finding, ...] = ()


def analyse(
    measured: Measured,
    reference: Reference,
    *,
    estimator: str,
    longest: int,
    thresholds: Thresholds,
    against: Sequence[str] = (TRAINER,),
) -> tuple[Pair, ...]:
    """Every subject against the trainer, then the subjects against each other.

    Args:
        measured: What was measured.
        reference: The trainer's side.
        estimator: The one that the run uses.
        longest: Longest completion of the run in tokens.
        thresholds: What counts as too much.
        against: "trainer", or names of subjects that others are compared with.
    """
    ids = [sequence.token_ids for sequence in measured.sequences]
    scores = reference.score(ids, "A")
    pairs = []
    if TRAINER in against:
        pairs = [
            _trainer_pair(measured, subject, reference, scores, estimator, longest, thresholds)
            for subject in measured.subjects
        ]
    for place, first in enumerate(measured.subjects):
        for second in measured.subjects[place + 1 :]:
            columns = columns_of(ids, list(first.scored), list(second.scored))
            if np.isfinite(columns.gap).any():
                pairs.append(_plain_pair(measured, first.name, second, columns))
    return tuple(pairs)


def analyse_scored(
    measured: Measured, reference: Reference, *, estimator: str, longest: int, thresholds: Thresholds
) -> tuple[Pair, ...]:
    """Subjects that only scored, against the trainer: no sampling, no second version, no repetition.

    The law comes from what the trainer wrote at temperature 1: to first order the variance of log W is the same under pi.

    Args:
        measured: What was measured; subjects of `scored_only`.
        reference: Holds the weights "A".
        estimator: The one that the run uses.
        longest: Longest completion of the run in tokens.
        thresholds: What counts as too much.
    """
    ids = [sequence.token_ids for sequence in measured.sequences]
    scores = reference.score(ids, "A")
    pairs = []
    for subject in measured.subjects:
        columns = columns_of(ids, scores.log_probs, list(subject.scored), scores.entropy)
        floor = thresholds.mean_gap or expected_floor(declared_type(subject.numerics))
        name = f"{subject.name} against {TRAINER}"
        own = _written_by_trainer(measured, columns)
        law = None if own is None else fit_law(own)
        usable = usable_lengths(law, thresholds.ess_floor) if law is not None else ()
        pairs.append(
            dataclasses.replace(
                _plain_pair(measured, TRAINER, subject, columns, own),
                law=law,
                usable=usable,
                curves=() if law is None else _curves(law, longest),
                fixed=_fixed(measured, subject, reference),
                findings=(
                    *diagnose(columns, floor=floor, subject=name),
                    *length_findings(name, usable, estimator, longest, thresholds),
                ),
            )
        )
    return tuple(pairs)


def _written_by_trainer(measured: Measured, columns: PairColumns) -> PairColumns | None:
    """The completion tokens of what the trainer wrote at temperature 1."""
    mine = np.array(
        [sequence.source == TRAINER and sequence.temperature == 1.0 for sequence in measured.sequences]
    )
    prompts = np.array([sequence.prompt_tokens for sequence in measured.sequences])
    chosen = mine[columns.sequence_ids] & (columns.positions >= prompts[columns.sequence_ids])
    chosen &= np.isfinite(columns.gap)
    return columns.select(chosen) if chosen.any() else None


def _trainer_pair(
    measured: Measured,
    subject: SubjectMeasurement,
    reference: Reference,
    scores: Scores,
    estimator: str,
    longest: int,
    thresholds: Thresholds,
) -> Pair:
    ids = [sequence.token_ids for sequence in measured.sequences]
    columns = columns_of(ids, scores.log_probs, list(subject.scored), scores.entropy)
    own = _own_columns(subject, reference)
    floor = thresholds.mean_gap or expected_floor(declared_type(subject.numerics))
    law = fit_law(own)
    usable = usable_lengths(law, thresholds.ess_floor) if law is not None else ()
    behaviour = _behaviour(measured, subject)
    name = f"{subject.name} against {TRAINER}"
    findings = [
        *investigate(measured, subject, reference, scores, floor),
        *behaviour_findings(
            name, subject.numerics.device_vendor, declared_type(subject.numerics), behaviour, thresholds
        ),
        *length_findings(name, usable, estimator, longest, thresholds),
    ]
    lengths = np.unique(np.geomspace(1, int(own.lengths.max()), _CURVE_POINTS).round().astype(np.int64))
    return dataclasses.replace(
        _plain_pair(measured, TRAINER, subject, columns, own),
        law=law,
        measured_lengths=tuple(int(length) for length in lengths),
        measured_shares=tuple(float(share) for share in measured_shares(own, lengths)),
        measured_crossing=measured_crossing(own, thresholds.ess_floor),
        held_out=held_out(own),
        usable=usable,
        curves=() if law is None else _curves(law, max(longest, int(own.lengths.max()))),
        behaviour=behaviour,
        fixed=_fixed(measured, subject, reference),
        findings=tuple(findings),
    )


def _own_columns(subject: SubjectMeasurement, reference: Reference) -> PairColumns:
    samples = subject.sampled
    scores = reference.score([(*sample.prompt, *sample.token_ids) for sample in samples], "A")
    return sampled_columns(
        samples, completion_part(samples, scores.log_probs), completion_part(samples, scores.entropy)
    )


def _plain_pair(
    measured: Measured,
    first: str,
    second: SubjectMeasurement,
    columns: PairColumns,
    own: PairColumns | None = None,
) -> Pair:
    return Pair(
        first=first,
        second=second.name,
        backend=second.backend,
        numerics_id=second.numerics.numerics_id,
        data_type=declared_type(second.numerics),
        summary=st.gap_summary(columns),
        sources=tuple(_sources(measured, columns)),
        positions=st.by_position(columns),
        probabilities=st.by_probability(columns),
        entropies=st.by_entropy(columns),
        worst_tokens=st.by_token(columns),
        first_token=None if own is None else _edge(own, own.offsets == 0),
        last_token=None
        if own is None
        else _edge(own, own.offsets == np.repeat(own.lengths, own.lengths) - 1),
        sequence_sums=_sums(columns),
    )


def _edge(columns: PairColumns, chosen: np.ndarray) -> st.GapSummary | None:
    chosen &= np.isfinite(columns.gap)
    return st.gap_summary(columns.select(chosen)) if chosen.any() else None


def _sources(measured: Measured, columns: PairColumns) -> list[SourceGap]:
    kinds = [(sequence.source, sequence.temperature) for sequence in measured.sequences]
    per_token = columns.sequence_ids
    found = []
    for source, temperature in sorted(set(kinds)):
        mine = np.array([kind == (source, temperature) for kind in kinds])[per_token]
        mine &= np.isfinite(columns.gap)
        if mine.any():
            shown = temperature or measured.plan.tempered
            found.append(
                SourceGap(source=source, temperature=shown, summary=st.gap_summary(columns.select(mine)))
            )
    return found


def _sums(columns: PairColumns) -> tuple[tuple[int, float, float, float], ...]:
    usable = columns.usable
    gap = usable.gap
    starts = np.cumsum(usable.lengths) - usable.lengths
    total, absolute, square = (np.add.reduceat(values, starts) for values in (gap, np.abs(gap), gap * gap))
    return tuple(
        (int(n), float(a), float(b), float(c))
        for n, a, b, c in zip(usable.lengths, total, absolute, square, strict=True)
    )


def _behaviour(measured: Measured, subject: SubjectMeasurement) -> Behaviour:
    once = [subject.scored[index] for index in measured.checked]
    alone = list(subject.scored_alone)
    reported, again = _decoded_and_scored(measured, subject)
    return Behaviour(
        repeat=difference(once, list(subject.scored_again)),
        batch=difference(once[: len(alone)], alone),
        decode=difference(reported, again),
        returned=difference(once, list(subject.scored_back)),
    )


def _decoded_and_scored(measured: Measured, subject: SubjectMeasurement) -> tuple[list[Floats], list[Floats]]:
    """Reported while sampling at temperature 1, and scored, of what the subject wrote itself."""
    by_tokens = {(*sample.prompt, *sample.token_ids): sample for sample in subject.sampled}
    reported, scored = [], []
    for sequence, column in zip(measured.sequences, subject.scored, strict=True):
        sample = by_tokens.get(sequence.token_ids)
        if sequence.source == subject.name and sequence.temperature == 1.0 and sample is not None:
            reported.append(sample.log_probs)
            scored.append(column[sequence.prompt_tokens - 1 :])
    return reported, scored


def _curves(law: RatioLaw, longest: int) -> tuple[Curve, ...]:
    lengths = tuple(
        int(n)
        for n in np.unique(np.geomspace(1, max(2, 2 * longest), _CURVE_POINTS).round().astype(np.int64))
    )
    found = []
    for estimator in SEQUENCE_LEVEL:
        for advantage in (1, -1):
            expected = [expected_at(estimator, advantage, law.variance(n), n) for n in lengths]
            found.append(
                Curve(
                    estimator=estimator,
                    advantage=advantage,
                    lengths=lengths,
                    effective_shares=tuple(one.effective_share for one in expected),
                    mean_coefficients=tuple(one.mean_coefficient for one in expected),
                )
            )
    return tuple(found)


def _fixed(measured: Measured, subject: SubjectMeasurement, reference: Reference) -> FixedScores:
    digest = hashlib.sha256()
    columns = []
    for sequence, column in zip(measured.sequences, subject.scored, strict=True):
        if sequence.source == "text":
            digest.update(np.asarray(sequence.token_ids, dtype="<i4").tobytes())
            columns.append(column)
    for named in reference.named:
        # The exact values, through a sum that any change of one bit moves: weights of one step differ in it.
        tensor = reference.snapshots["A"].tensors[named.name]
        digest.update(f"{named.name}{tensor.double().sum().item()!r}".encode())
    values = np.concatenate(columns).astype("<f4").tobytes()
    return FixedScores(tokens_digest=digest.hexdigest(), log_probs=base64.b64encode(values).decode())
