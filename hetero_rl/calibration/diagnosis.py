"""From two columns to named causes. Shared by the calibration and the audit.

    diagnose(columns, floor=..., alternatives=...)
        1  values that cannot be log-probabilities
        2  shifted by one token
        3  what the trainer itself computed under known faults (`alternatives`), if the caller could compute it
        4  rounded to 16 bits
        5  drifting past a position, shifted by a constant, renormalised over a nucleus, noisy behind the softmax
        6  above the floor without a known shape: the two that cannot be told apart

The first cause that explains the gap ends the search, except for rounding, which may stand beside another one.
"""

from collections.abc import Sequence

import numpy as np

from hetero_rl.calibration.alternatives import Alternative, best_explanation
from hetero_rl.calibration.causes import finding_of
from hetero_rl.calibration.columns import PairColumns
from hetero_rl.calibration.signatures import (
    constant_bias,
    explained_by_rounding,
    kept_mass,
    late_drift,
    log_prob_noise,
    off_by_one,
    rounding,
)
from hetero_rl.reports.findings import Finding
from hetero_rl.reports.text import format_number
from hetero_rl.wire.messages import NumericsRecord

__all__ = ["FLOORS", "LEAST_TOKENS", "declared_type", "diagnose", "expected_floor"]

FLOORS = {"float32": 5e-5, "float16": 0.0075, "bfloat16": 0.075, "int8": 0.08}
"""Mean |gap| in nats that a data type explains by itself, against a float32 trainer.

One and a half times the worst that `docs/calibration.md` and `docs/vllm.md` have measured: float16 4.7e-3, bfloat16 4.8e-2,
int8 weights 5.4e-2. float32 has more room above its 5.7e-6, as sums grow with a model's width and depth and all of that is
small. A fault below a floor is found by its shape or by what the trainer computes."""

LEAST_TOKENS = 64
"""Fewer tokens than this tell no cause."""


def expected_floor(*data_types: str) -> float:
    """The floor of a pair: that of its coarsest data type; an unknown one counts as bfloat16."""
    return max(FLOORS.get(name, FLOORS["bfloat16"]) for name in data_types)


def declared_type(numerics: NumericsRecord) -> str:
    """The coarsest data type that a record declares: that of quantised weights, where there are any, else its own."""
    emulated = numerics.knobs.get("emulate", "")
    return (
        "int8"
        if "int8" in emulated or "int8" in numerics.knobs.get("quantization", "")
        else numerics.data_type
    )


def diagnose(
    columns: PairColumns,
    *,
    floor: float,
    alternatives: Sequence[Alternative] = (),
    subject: str = "",
) -> list[Finding]:
    """Causes of the gap, the most specific first; none when there is nothing to explain.

    Args:
        columns: The pair; N tokens.
        floor: Mean |gap| in nats that the declared numerics explain (`expected_floor`).
        alternatives: What the trainer gives under known faults, for exactly these tokens.
        subject: What the findings are about, such as "ascend against trainer".
    """
    findings = _impossible(columns, subject)
    finite = np.isfinite(columns.gap)
    if int(finite.sum()) < LEAST_TOKENS:
        return [*findings, finding_of("too_little_data", str(int(finite.sum())), (), subject)]
    if not finite.all():
        columns = columns.select(finite)
        alternatives = [
            Alternative(code=one.code, detail=one.detail, log_probs=one.log_probs[finite])
            for one in alternatives
        ]
    if shifted := off_by_one(columns, floor, subject):
        return [*findings, shifted]
    if explained := best_explanation(columns, alternatives, subject):
        return [*findings, explained, *_present(rounding(columns, subject))]
    if rounded := rounding(columns, subject):
        findings.append(rounded)
        if explained_by_rounding(columns, floor):
            return findings
    return [*findings, *_shaped(columns, floor, subject)]


def _shaped(columns: PairColumns, floor: float, subject: str) -> list[Finding]:
    found = (
        late_drift(columns, floor, subject)
        or constant_bias(columns, subject)
        or kept_mass(columns, floor, subject)
        or log_prob_noise(columns, subject)
        or _shapeless(columns, floor, subject)
    )
    return _present(found)


def _shapeless(columns: PairColumns, floor: float, subject: str) -> Finding | None:
    size = float(np.abs(columns.gap).mean())
    if size <= floor:
        return None
    evidence = (f"mean |gap| is {format_number(size)} nats over {len(columns.gap)} tokens",)
    slope = float(np.corrcoef(columns.gap, columns.reference)[0, 1]) if columns.reference.std() > 0 else 0.0
    if abs(slope) > 0.5 and size > 4 * floor:
        return finding_of(
            "distribution_or_weights",
            f"the gap follows the log-probability, correlation {slope:.2f}",
            evidence,
            subject,
        )
    return finding_of("numerics_or_weights", f"{format_number(floor)} nats", evidence, subject)


def _impossible(columns: PairColumns, subject: str) -> list[Finding]:
    wrong = ~np.isfinite(columns.measured)
    if not wrong.any():
        return []
    evidence = (f"{int(wrong.sum())} of {len(wrong)} tokens",)
    return [finding_of("not_finite", str(int(wrong.sum())), evidence, subject)]


def _present(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding]
