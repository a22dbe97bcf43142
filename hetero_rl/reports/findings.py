"""What a report concludes: findings, each with its cause, its evidence and the next step; the verdict is the worst."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hetero_rl.errors import DamagedError

__all__ = ["Finding", "Verdict", "finding_from_record", "finding_record", "first_line", "worst_verdict"]


class Verdict(enum.IntEnum):
    """How bad it is; the larger, the worse."""

    OK = 0
    CAUTION = 1
    UNUSABLE = 2

    @property
    def word(self) -> str:
        """As people and JSON read it: "ok", "caution" or "unusable"."""
        return self.name.lower()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a person should know."""

    verdict: Verdict
    code: str
    """Stable name for programs, such as "temperature_applied_twice"."""
    cause: str
    """One sentence that names the cause, or the two that the data cannot tell apart."""
    evidence: tuple[str, ...]
    """Sentences with the measured numbers behind it."""
    next_step: str
    """What to do now."""
    subject: str = ""
    """What it is about, such as "ascend against trainer"; empty for the whole report."""


def worst_verdict(findings: Iterable[Finding]) -> Verdict:
    """The verdict of a whole report; OK without findings."""
    return max((finding.verdict for finding in findings), default=Verdict.OK)


def first_line(findings: Sequence[Finding], nothing: str) -> str:
    """The line that a report opens with: the worst finding's cause, or `nothing` when there is none.

    Args:
        findings: Most important first; among equal verdicts the first counts.
        nothing: Sentence for a report without findings.
    """
    if not findings:
        return f"{Verdict.OK.word}: {nothing}"
    top = max(findings, key=lambda finding: finding.verdict)
    subject = f"{top.subject}: " if top.subject else ""
    return f"{top.verdict.word}: {subject}{top.cause}"


def finding_record(finding: Finding) -> dict[str, object]:
    """A finding as JSON values."""
    return {
        "verdict": finding.verdict.word,
        "code": finding.code,
        "subject": finding.subject,
        "cause": finding.cause,
        "evidence": list(finding.evidence),
        "next_step": finding.next_step,
    }


def finding_from_record(record: Mapping[str, Any]) -> Finding:
    """A finding from its JSON values; raises DamagedError when they are none."""
    try:
        return Finding(
            verdict=Verdict[str(record["verdict"]).upper()],
            code=str(record["code"]),
            subject=str(record.get("subject", "")),
            cause=str(record["cause"]),
            evidence=tuple(str(sentence) for sentence in record["evidence"]),
            next_step=str(record["next_step"]),
        )
    except (KeyError, TypeError) as error:
        raise DamagedError(f"not a finding of a report: {error!r} in {record!r}") from error
