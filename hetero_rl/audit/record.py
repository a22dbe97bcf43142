"""An audit as a value: from what a run keeps, to JSON, and back as plain data."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_rl.audit.findings import find
from hetero_rl.audit.run_data import RunData
from hetero_rl.audit.split import BackendSplit, split_backend
from hetero_rl.audit.weighing import Alternative, Weighing, side_by_side, weigh
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.reports.findings import Finding, finding_record, first_line
from hetero_rl.reports.record import read_record, record_text

__all__ = ["SCHEMA_VERSION", "Audit", "audit_run", "audit_text", "read_audit"]

KIND = "audit"
SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found."""

    run_id: str
    made_at: str
    """ISO 8601, UTC."""
    committed_step: int
    total_steps: int
    max_lag: int
    software_version: str
    """hetero-rl of the trainer."""
    config_json: str
    """Settings of the run."""
    splits: tuple[BackendSplit, ...]
    """All backends together first, when there are several; then each."""
    weighings: tuple[Weighing, ...]
    alternatives: tuple[Alternative, ...]
    findings: tuple[Finding, ...]
    workers: tuple[dict[str, Any], ...]
    """Name, backend, numerics record, whether it was calibrated for this model."""
    incidents: tuple[tuple[str, str, str, str], ...]
    """Time, kind, worker, message of events that are more than coming and going."""
    event_counts: dict[str, int]
    counters: dict[str, int]
    samples: int
    """Sequences whose tokens are kept."""
    statements: tuple[str, ...]
    """What this data cannot tell, said in so many words."""

    @property
    def first_line(self) -> str:
        """The verdict in one sentence."""
        sequences = self.splits[0].sequences
        backends = ", ".join(split.backend for split in self.splits if split.backend)
        return first_line(self.findings, f"nothing to object to in {sequences} trajectories of {backends}")


_ROUTINE = {
    "run_opened",
    "run_closed",
    "worker_joined",
    "worker_left",
    "weights_published",
    "version_published",
    "checkpoint",
}
_MOST_INCIDENTS = 200


def audit_run(
    data: RunData, *, thresholds: Thresholds | None = None, calibrated: frozenset[str] = frozenset()
) -> Audit:
    """Audits a run.

    Args:
        data: What it keeps.
        thresholds: What counts as too much; None takes the defaults.
        calibrated: Numerics ids that were calibrated for this model.
    """
    names = data.backends
    scopes = ("", *names) if len(names) > 1 else names
    splits = tuple(split_backend(data, name) for name in scopes)
    weighings = tuple(weigh(data, name) for name in scopes)
    own_splits = [split for split in splits if split.backend]
    own_weighings = [weighing for weighing in weighings if weighing.backend]
    return Audit(
        run_id=data.request.run_id,
        made_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        committed_step=data.committed_step,
        total_steps=data.request.total_steps,
        max_lag=data.request.max_lag,
        software_version=data.request.software_version,
        config_json=data.request.config_json,
        splits=splits,
        weighings=weighings,
        alternatives=tuple(side_by_side(data)),
        findings=tuple(find(data, own_splits, own_weighings, thresholds or Thresholds())),
        workers=tuple(
            {
                "name": worker.worker_name,
                "backend": worker.backend,
                "software_version": worker.software_version,
                "numerics_id": worker.numerics.numerics_id,
                "numerics": dataclasses.asdict(worker.numerics),
                "calibrated": worker.numerics.numerics_id in calibrated,
            }
            for worker in data.workers
        ),
        incidents=tuple(_incidents(data)),
        event_counts=_counted([event.kind for event in data.events]),
        counters=dict(data.counters),
        samples=len(data.samples),
        statements=tuple(_statements(data, own_splits)),
    )


def _incidents(data: RunData) -> list[tuple[str, str, str, str]]:
    special = [event for event in data.events if event.kind not in _ROUTINE]
    return [
        (
            dt.datetime.fromtimestamp(event.occurred_at, dt.UTC).isoformat(timespec="seconds"),
            event.kind,
            event.worker_name,
            event.message,
        )
        for event in special[-_MOST_INCIDENTS:]
    ]


def _counted(kinds: list[str]) -> dict[str, int]:
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _statements(data: RunData, splits: list[BackendSplit]) -> list[str]:
    said = []
    if len(splits) == 1:
        said.append(f"One backend only ({splits[0].backend}): there is no other chip to compare it with.")
    for split in splits:
        if split.witness == "none":
            said.append(
                f"{split.backend}: no sequence was trained at lag 0 and pi_old was not recomputed, so its log W cannot be split; the probe "
                "cards alone tell of the chip."
            )
        elif split.witness == "lag 0":
            said.append(
                f"{split.backend}: the chip part is the variance at lag 0, scaled by length, and the two parts are taken as uncorrelated. "
                'estimator.recompute_old_log_probs = "sampled" measures both and their cross term.'
            )
    if not data.samples:
        said.append(
            "No tokens are kept together with the trainer's log-probabilities: nothing below the sequence can be shown."
        )
    return said


def audit_text(audit: Audit) -> str:
    """The JSON file of an audit."""
    body = dataclasses.asdict(audit)
    body["findings"] = [finding_record(finding) for finding in audit.findings]
    body["first_line"] = audit.first_line
    return record_text(KIND, SCHEMA_VERSION, body)


def read_audit(path: Path) -> Mapping[str, Any]:
    """The body of an audit file; raises DamagedError or StorageError, for a newer schema too."""
    return read_record(path, KIND, SCHEMA_VERSION)
