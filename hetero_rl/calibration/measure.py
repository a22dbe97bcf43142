"""Runs a plan: everybody samples and scores the same tokens under the same weights, first A, then B, then A again.

version 1 = A   every subject and the trainer sample; everybody scores everything, some of it twice and one at a time
version 2 = B   the same prompts again (a kept prefix cache shows), and some sequences scored
version 3 = A   the same sequences scored: what does not return to A is left over from the updates
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hetero_rl.calibration.columns import Floats, PairColumns
from hetero_rl.calibration.plan import Plan, TextSequence
from hetero_rl.calibration.reference import Reference
from hetero_rl.calibration.subject import Sampled, Subject
from hetero_rl.wire.messages import NumericsRecord

__all__ = [
    "Measured",
    "SubjectMeasurement",
    "columns_of",
    "completion_part",
    "measure",
    "sampled_columns",
    "scored_only",
]

A, B = "A", "B"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubjectMeasurement:
    """What one subject reported. Lists of arrays have one array of L - 1 numbers for each sequence of L tokens."""

    name: str
    backend: str
    numerics: NumericsRecord
    sampled: tuple[Sampled, ...]
    """Completions under A, at temperature 1."""
    tempered: tuple[Sampled, ...]
    """Completions under A at `Plan.tempered`; none where the backend reports the distribution before temperature."""
    sampled_after_update: tuple[Sampled, ...]
    """Completions of some of the same prompts under B."""
    scored: tuple[Floats, ...]
    """Every sequence of the measurement, in one request."""
    scored_again: tuple[Floats, ...]
    """The checked sequences, a second time."""
    scored_alone: tuple[Floats, ...]
    """The first few checked sequences, one request for each."""
    scored_under_b: tuple[Floats, ...]
    """The checked sequences under B."""
    scored_back: tuple[Floats, ...]
    """The checked sequences under A again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Everything that was measured."""

    plan: Plan
    sequences: tuple[TextSequence, ...]
    checked: tuple[int, ...]
    """Indices of the sequences that are scored under each version."""
    subjects: tuple[SubjectMeasurement, ...]


def scored_only(
    name: str, backend: str, numerics: NumericsRecord, scored: Sequence[Floats]
) -> SubjectMeasurement:
    """A subject that scored every sequence and did nothing else."""
    return SubjectMeasurement(
        name=name,
        backend=backend,
        numerics=numerics,
        sampled=(),
        tempered=(),
        sampled_after_update=(),
        scored=tuple(scored),
        scored_again=(),
        scored_alone=(),
        scored_under_b=(),
        scored_back=(),
    )


def measure(
    plan: Plan,
    subjects: Sequence[Subject],
    prompts: Sequence[tuple[int, ...]],
    texts: Sequence[TextSequence],
    reference: Reference,
    report: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Measures all subjects.

    Args:
        plan: How much.
        subjects: Running, with nothing loaded yet.
        prompts: What everybody completes.
        texts: What everybody scores besides what the subjects write: texts, and what the trainer wrote.
        reference: Holds the snapshots "A" and "B".
        report: Takes a sentence on what is done now.
    """
    first: dict[str, tuple[tuple[Sampled, ...], tuple[Sampled, ...]]] = {}
    for subject in subjects:
        report(f"{subject.name}: loads A and writes {plan.prompts * plan.group_size} completions")
        subject.load(1, reference.snapshots[A])
        first[subject.name] = (_sample(plan, subject, prompts, 1.0), _tempered(plan, subject, prompts))
    sequences = (
        *texts,
        *(one for subject in subjects for one in _written(subject.name, *first[subject.name])),
    )
    checked = _checked(plan, sequences)
    measured = []
    for subject in subjects:
        report(f"{subject.name}: scores {len(sequences)} sequences, then under B, then under A again")
        own, tempered = first[subject.name]
        measured.append(_measure_one(plan, subject, prompts, sequences, checked, own, tempered, reference))
    return Measured(plan=plan, sequences=sequences, checked=checked, subjects=tuple(measured))


def _measure_one(
    plan: Plan,
    subject: Subject,
    prompts: Sequence[tuple[int, ...]],
    sequences: Sequence[TextSequence],
    checked: Sequence[int],
    own: tuple[Sampled, ...],
    tempered: tuple[Sampled, ...],
    reference: Reference,
) -> SubjectMeasurement:
    some = [sequences[index].token_ids for index in checked]
    scored = subject.score([one.token_ids for one in sequences])
    again = subject.score(some)
    alone = [subject.score([one])[0] for one in some[: plan.alone]]
    subject.load(2, reference.snapshots[B])
    after = _sample(plan, subject, prompts[: max(2, len(prompts) // 2)], 1.0)
    under_b = subject.score(some)
    subject.load(3, reference.snapshots[A])
    back = subject.score(some)
    return SubjectMeasurement(
        name=subject.name,
        backend=subject.backend,
        numerics=subject.numerics,
        sampled=own,
        tempered=tempered,
        sampled_after_update=after,
        scored=tuple(scored),
        scored_again=tuple(again),
        scored_alone=tuple(alone),
        scored_under_b=tuple(under_b),
        scored_back=tuple(back),
    )


def _sample(
    plan: Plan, subject: Subject, prompts: Sequence[tuple[int, ...]], temperature: float
) -> tuple[Sampled, ...]:
    found = subject.generate(
        prompts,
        group_size=plan.group_size,
        max_new_tokens=plan.max_new_tokens,
        temperature=temperature,
        seed=plan.seed + 1,
    )
    return tuple(found)


def _tempered(plan: Plan, subject: Subject, prompts: Sequence[tuple[int, ...]]) -> tuple[Sampled, ...]:
    if plan.tempered == 1.0 or not subject.capabilities.processed_log_probs:
        return ()
    return _sample(plan, subject, prompts[: max(2, len(prompts) // 3)], plan.tempered)


def _written(name: str, own: Sequence[Sampled], tempered: Sequence[Sampled]) -> list[TextSequence]:
    """What a subject wrote, one completion of each prompt and temperature, as sequences for everybody to score."""
    found: dict[tuple[tuple[int, ...], float], TextSequence] = {}
    for temperature, samples in ((1.0, own), (0.0, tempered)):
        for sample in samples:
            tokens = (*sample.prompt, *sample.token_ids)
            sequence = TextSequence(tokens, len(sample.prompt), name, temperature)
            found.setdefault((sample.prompt, temperature), sequence)
    return list(found.values())


def _checked(plan: Plan, sequences: Sequence[TextSequence]) -> tuple[int, ...]:
    """Evenly spread over the sequences, the longest text among them."""
    longest = max(range(len(sequences)), key=lambda index: len(sequences[index].token_ids))
    spread = np.linspace(0, len(sequences) - 1, min(plan.checked, len(sequences))).round().astype(int)
    return tuple(sorted({longest, *(int(index) for index in spread)}))


def columns_of(
    sequences: Sequence[Sequence[int]],
    reference: Floats | Sequence[Floats],
    measured: Floats | Sequence[Floats],
    entropy: Floats | None = None,
) -> PairColumns:
    """A pair over whole sequences: every token but the first of each."""
    return PairColumns(
        lengths=np.array([len(sequence) - 1 for sequence in sequences], dtype=np.int64),
        reference=_flat(reference),
        measured=_flat(measured),
        token_ids=np.array([token for sequence in sequences for token in sequence[1:]], dtype=np.int64),
        positions=np.concatenate([np.arange(1, len(sequence)) for sequence in sequences]),
        entropy=entropy,
    )


def sampled_columns(
    samples: Sequence[Sampled], reference: Floats, entropy: Floats | None = None
) -> PairColumns:
    """A pair over the completion tokens only, as they were reported when sampled.

    Args:
        samples: N completion tokens in all.
        reference: For the completion tokens [N].
        entropy: For the completion tokens [N].
    """
    return PairColumns(
        lengths=np.array([len(sample.token_ids) for sample in samples], dtype=np.int64),
        reference=reference,
        measured=_flat([sample.log_probs for sample in samples]),
        token_ids=np.array([token for sample in samples for token in sample.token_ids], dtype=np.int64),
        positions=np.concatenate(
            [len(sample.prompt) + np.arange(len(sample.token_ids)) for sample in samples]
        ).astype(np.int64),
        entropy=entropy,
    )


def completion_part(samples: Sequence[Sampled], whole: Floats) -> Floats:
    """Of columns over whole sequences (prompt and completion, all but the first token) what belongs to completions."""
    kept = [
        np.arange(len(sample.prompt) + len(sample.token_ids) - 1) >= len(sample.prompt) - 1
        for sample in samples
    ]
    return np.asarray(whole[np.concatenate(kept)])


def _flat(values: Floats | Sequence[Floats]) -> Floats:
    return values if isinstance(values, np.ndarray) else np.concatenate(list(values))
