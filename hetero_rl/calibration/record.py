"""A calibration as a whole: its facts, its pairs, its verdict; as JSON, and as short text for a terminal."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_rl.calibration.analysis import Pair
from hetero_rl.calibration.plan import Plan
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.calibration.usable_length import LONGEST
from hetero_rl.reports.findings import Finding, finding_record, first_line, worst_verdict
from hetero_rl.reports.record import read_record, record_text
from hetero_rl.reports.text import format_number

__all__ = [
    "KIND",
    "SCHEMA_VERSION",
    "Calibration",
    "calibration_text",
    "read_calibration",
    "summary_lines",
]

KIND = "calibration"
SCHEMA_VERSION = 1
NOTHING = "no gap that the declared numerics do not explain, and no length that is too long"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that a calibration found."""

    made_at: str
    """ISO 8601, UTC."""
    model: str
    """What the model is called."""
    model_digest: str
    """Digest of the model's configuration: calibrations are stored under it."""
    state_digest: str
    """Digest of the weights A, as published."""
    command: str
    """What made it."""
    estimator: str
    longest: int
    """Longest completion of the run in tokens."""
    plan: Plan
    thresholds: Thresholds
    pairs: tuple[Pair, ...]
    numerics: Mapping[str, Mapping[str, Any]]
    """Numerics record of every subject, by its name."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all pairs, the worst first."""
        found = [finding for pair in self.pairs for finding in pair.findings]
        return tuple(sorted(found, key=lambda finding: -finding.verdict))

    @property
    def first_line(self) -> str:
        """The verdict in one sentence."""
        return first_line(self.findings, NOTHING)


def calibration_text(calibration: Calibration) -> str:
    """The JSON file of a calibration."""
    body = {
        "verdict": worst_verdict(calibration.findings).word,
        "first_line": calibration.first_line,
        **{
            field.name: getattr(calibration, field.name)
            for field in dataclasses.fields(calibration)
            if field.name not in {"pairs", "plan", "thresholds", "numerics"}
        },
        "plan": dataclasses.asdict(calibration.plan),
        "thresholds": dataclasses.asdict(calibration.thresholds),
        "numerics": {name: dict(record) for name, record in calibration.numerics.items()},
        "pairs": [
            {**dataclasses.asdict(pair), "findings": [finding_record(finding) for finding in pair.findings]}
            for pair in calibration.pairs
        ],
    }
    return record_text(KIND, SCHEMA_VERSION, body)


def read_calibration(path: Path) -> dict[str, Any]:
    """The body of a calibration file; raises DamagedError or StorageError as `read_record` does."""
    return read_record(path, KIND, SCHEMA_VERSION)


def summary_lines(calibration: Calibration) -> Sequence[str]:
    """What a terminal shows: the verdict, one line for each pair, the findings."""
    lines = [calibration.first_line, ""]
    for pair in calibration.pairs:
        gap = pair.summary
        lines.append(
            f"{pair.second} against {pair.first} ({pair.data_type}, numerics {pair.numerics_id}): mean |gap| "
            f"{format_number(gap.mean_absolute)}, p99.9 {format_number(gap.quantiles[-1])}, max {format_number(gap.maximum)} nats, "
            f"k3 {format_number(gap.k3)}, over {gap.tokens} tokens"
        )
        lines += [f"  {text}" for text in (*_usable(pair), *_held_out(pair))]
        lines += [
            f"  {finding.verdict.word}: {finding.cause}. {finding.next_step}" for finding in pair.findings
        ]
    return lines


def _usable(pair: Pair) -> list[str]:
    if not pair.usable:
        return []
    shown: dict[str, str] = {}
    for length in pair.usable:
        tokens = "any length" if length.tokens >= LONGEST else f"{length.tokens}"
        sign = "" if length.estimator == "seq_is" else (" A>=0" if length.advantage > 0 else " A<0")
        shown[length.estimator + sign] = tokens
    floor = pair.usable[0].floor
    return [
        f"usable length at an effective share of {floor:g}: "
        + ", ".join(f"{k} {v}" for k, v in shown.items())
    ]


def _held_out(pair: Pair) -> list[str]:
    if not pair.held_out:
        return []
    each = ", ".join(
        f"{one.floor:g} at {one.predicted:.0f} predicted, {one.measured:.0f} measured"
        for one in pair.held_out
    )
    return [f"raw weights of sequences that the law was not fitted to cross a share of {each} tokens"]
