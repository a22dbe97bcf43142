"""The outcome of a certification as JSON and as a self-contained page.

The record names who signed it off and carries a digest over everything else in it: a record that was edited by hand is
found out. It is no cryptographic signature; whoever can write the file can write the digest.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_rl.certify.runner import Certification, CheckOutcome
from hetero_rl.certify.subject import Tolerance
from hetero_rl.errors import DamagedError
from hetero_rl.reports.blocks import Column, Page, Paragraph, Section, Table
from hetero_rl.reports.findings import Finding, Verdict, first_line
from hetero_rl.reports.page import render_page
from hetero_rl.reports.record import read_record, record_text, write_text

__all__ = [
    "Circumstances",
    "certification_page",
    "certification_text",
    "read_certification",
    "write_certification",
]

KIND = "certification"
SCHEMA_VERSION = 1
_FRAME = frozenset({"schema", "schema_version", "software_version", "digest"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a certification was made with."""

    backend: str
    """As the hub would see it: an emulated backend is labelled."""
    engine: str
    profile: str
    model: str
    data_type: str
    tolerance: Tolerance
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    """Of driver, toolkit, Python and distributions."""
    signed_off_by: str
    created_at: str
    """ISO 8601, UTC."""


def certification_text(certification: Certification, circumstances: Circumstances) -> str:
    """The text of the JSON file."""
    body = _body(certification, circumstances)
    return record_text(KIND, SCHEMA_VERSION, {**body, "digest": _digest(body)})


def write_certification(
    directory: Path, certification: Certification, circumstances: Circumstances
) -> tuple[Path, Path]:
    """Writes both files into a directory; returns the paths of JSON and page."""
    stem = f"certification-{circumstances.backend}-{circumstances.engine}"
    json_file, page_file = directory / f"{stem}.json", directory / f"{stem}.html"
    write_text(json_file, certification_text(certification, circumstances))
    write_text(page_file, certification_page(certification, circumstances))
    return json_file, page_file


def read_certification(path: Path) -> dict[str, Any]:
    """The body of a certification file.

    Raises:
        DamagedError: It is none, or something in it was changed after it was written.
    """
    record = read_record(path, KIND, SCHEMA_VERSION)
    body = {key: value for key, value in record.items() if key not in _FRAME}
    if record.get("digest") != _digest(body):
        raise DamagedError(
            f"{path}: its digest does not fit its content; it was changed after it was written"
        )
    return record


def _digest(body: Mapping[str, object]) -> str:
    """SHA-256 of the content as it reads back from the file; which release wrote it does not matter."""
    content = json.loads(record_text(KIND, SCHEMA_VERSION, body))
    kept = {key: value for key, value in content.items() if key not in _FRAME}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _body(certification: Certification, circumstances: Circumstances) -> dict[str, object]:
    numerics, capabilities = certification.numerics, certification.capabilities
    return {
        "passed": certification.passed,
        "emulated": numerics.emulated if numerics else False,
        **dataclasses.asdict(circumstances),
        "numerics_id": numerics.numerics_id if numerics else None,
        "numerics": dataclasses.asdict(numerics) if numerics else None,
        "capabilities": dataclasses.asdict(capabilities) if capabilities else None,
        "seconds": certification.seconds,
        "checks": [dataclasses.asdict(outcome) for outcome in certification.outcomes],
    }


def certification_page(certification: Certification, circumstances: Circumstances) -> str:
    """The self-contained HTML page."""
    findings = tuple(_finding(outcome) for outcome in certification.outcomes if not outcome.passed)
    numerics = certification.numerics
    emulated = numerics is not None and numerics.emulated
    passed = f"all {len(certification.outcomes)} checks passed"
    if emulated:
        passed += "; the numerics are emulated, so nothing is said about the chip"
    return render_page(
        Page(
            title=f"Certification of {circumstances.backend} with {circumstances.engine}",
            first_line=first_line(findings, passed),
            findings=findings,
            summary=_summary(certification, circumstances, emulated=emulated),
            sections=(
                Section("Checks", (_outcome_table(certification.outcomes),)),
                Section("Figures", (_figure_table(certification.outcomes),)),
                Section("What it ran on", (_environment_table(certification, circumstances),)),
                Section("What this is", (Paragraph(_MEANING),)),
            ),
        )
    )


_MEANING = (
    "Each check is a rule of hetero-rl's engine interface, run on the device named above. Passing says that this engine, on "
    "this device, with these versions, keeps the rules that training relies on. It says nothing about another driver, "
    "toolkit or release: certify again after an upgrade, and calibrate against the trainer before a run."
)


def _finding(outcome: CheckOutcome) -> Finding:
    return Finding(
        verdict=Verdict.UNUSABLE,
        code=outcome.name.replace("-", "_"),
        cause=f"{outcome.name}: {outcome.rule}",
        evidence=(outcome.message,),
        next_step="Look up the backend's quirks in docs/backends.md, run `hetero-rl doctor`, and certify again.",
    )


def _summary(
    certification: Certification, circumstances: Circumstances, *, emulated: bool
) -> Sequence[tuple[str, str]]:
    numerics = certification.numerics
    return (
        ("backend", circumstances.backend),
        ("devices", ", ".join(circumstances.devices) or "none"),
        (
            "numerics",
            f"{numerics.numerics_id}{' (emulated)' if emulated else ''}" if numerics else "never started",
        ),
        ("engine", f"{circumstances.engine}, profile {circumstances.profile}, {circumstances.data_type}"),
        ("model", circumstances.model),
        ("signed off by", circumstances.signed_off_by),
        ("when", circumstances.created_at),
    )


def _outcome_table(outcomes: Sequence[CheckOutcome]) -> Table:
    rows = [
        (
            outcome.name,
            outcome.rule,
            "passed" if outcome.passed else "FAILED",
            outcome.seconds,
            outcome.message,
        )
        for outcome in outcomes
    ]
    columns = (
        Column("check"),
        Column("rule"),
        Column("outcome"),
        Column("took", unit="s"),
        Column("why"),
    )
    return Table("What came of each check.", columns, rows)


def _figure_table(outcomes: Sequence[CheckOutcome]) -> Table:
    rows = [(outcome.name, name, value) for outcome in outcomes for name, value in outcome.figures.items()]
    columns = (Column("check"), Column("figure"), Column("value", digits=4))
    return Table("Log-probability differences are in natural log units, per token.", columns, rows)


def _environment_table(certification: Certification, circumstances: Circumstances) -> Table:
    rows: list[tuple[str, str]] = sorted(circumstances.versions.items())
    if certification.numerics is not None:
        record = dataclasses.asdict(certification.numerics)
        knobs = record.pop("knobs")
        rows += [(name.replace("_", " "), str(value)) for name, value in record.items()]
        rows += [(f"knob {name}", value) for name, value in sorted(knobs.items())]
    return Table("Versions, numerics and knobs.", (Column("what"), Column("value")), rows)
