"""What a fault looks like in the two columns alone, without the trainer's help. Each test returns a finding or None.

g = log pi - log mu in nats, p = the reference's probability. Honest numerics move logits, and a logit's error hardly moves the
log-probability of a token whose p is near 1: what those tokens do tells a fault behind the softmax from a chip.
"""

import numpy as np

from hetero_rl.calibration.causes import finding_of
from hetero_rl.calibration.columns import Floats, PairColumns
from hetero_rl.reports.findings import Finding
from hetero_rl.reports.text import format_number

__all__ = ["constant_bias", "kept_mass", "late_drift", "log_prob_noise", "off_by_one", "rounding"]

RESOLUTION = 1e-4
"""Gaps below this, in nats, are float32 arithmetic in another order and have no cause worth a name."""

_LEAST_TOKENS = 32
_ON_GRID = 0.99
_CERTAIN, _UNLIKELY = np.log(0.99), np.log(0.5)


def off_by_one(columns: PairColumns, floor: float, subject: str = "") -> Finding | None:
    """Whether the measured value of a token is the reference of its neighbour."""
    own = float(np.median(np.abs(columns.gap)))
    if own <= max(floor, 0.01):
        return None
    for shift, name in ((1, "next"), (-1, "previous")):
        moved = _shifted(columns, shift)
        there = np.isfinite(moved)
        if there.sum() < _LEAST_TOKENS:
            continue
        other = float(np.median(np.abs(columns.measured[there] - moved[there])))
        if other < 0.25 * own:
            evidence = (
                f"median |gap| is {format_number(own)} nats, and {format_number(other)} against the {name} token's",
            )
            return finding_of("off_by_one", name, evidence, subject)
    return None


def _shifted(columns: PairColumns, shift: int) -> Floats:
    """The reference of the token `shift` places later in the same sequence; NaN where there is none."""
    ids = columns.sequence_ids
    moved = np.roll(columns.reference, -shift)
    return np.where(np.roll(ids, -shift) == ids, moved, np.nan)


def rounding(columns: PairColumns, subject: str = "") -> Finding | None:
    """Whether the measured values lie on the grid of a 16-bit float."""
    values = columns.measured[columns.measured != 0].astype(np.float32)
    if len(values) < _LEAST_TOKENS:
        return None
    bfloat = float(((values.view(np.uint32) & 0xFFFF) == 0).mean())
    with np.errstate(over="ignore"):
        half = float((values.astype(np.float16).astype(np.float32) == values).mean())
    if max(bfloat, half) < _ON_GRID:
        return None
    name = "bfloat16" if bfloat >= half else "float16"
    evidence = (
        (
            f"{100 * max(bfloat, half):.1f} % of {len(values)} values are exact in {name}; by chance about "
            f"{100 * 2.0**-16 if name == 'bfloat16' else 100 * 2.0**-13:.3f} % would be"
        ),
    )
    return finding_of(f"rounded_{name}", "", evidence, subject)


def explained_by_rounding(columns: PairColumns, floor: float) -> bool:
    """Whether the gaps are no larger than what rounding to bfloat16 makes."""
    within = np.abs(columns.gap) <= 2.0**-8 * np.abs(columns.measured) + 3 * floor + RESOLUTION
    return float(within.mean()) > _ON_GRID


def late_drift(columns: PairColumns, floor: float, subject: str = "") -> Finding | None:
    """Whether the gap is small up to some position and large past it."""
    order = np.argsort(columns.positions, kind="stable")
    positions, size = columns.positions[order], np.abs(columns.gap[order])
    split, significance = _best_split(positions, np.log(size + RESOLUTION / 10))
    if split == 0 or significance < 8:
        return None
    before, after = float(size[:split].mean()), float(size[split:].mean())
    if after < max(3 * before, floor / 4, RESOLUTION):
        return None
    late = size[split:]
    growing = float(late[len(late) // 2 :].mean()) > 3 * float(late[: len(late) // 2].mean())
    evidence = (
        (
            f"mean |gap| is {format_number(before)} nats before and {format_number(after)} after, "
            f"{significance:.0f} standard errors apart"
        ),
    )
    code = "grows_with_position" if growing else "drift_past_position"
    return finding_of(code, str(int(positions[split]) - 1), evidence, subject)


def _best_split(positions: np.ndarray, values: Floats) -> tuple[int, float]:
    """The index of a first token of a position that parts low values from high ones best, and Welch's t of the parts."""
    count = len(values)
    starts = np.flatnonzero(np.diff(positions)) + 1
    starts = starts[(starts >= _LEAST_TOKENS) & (count - starts >= _LEAST_TOKENS)]
    if not len(starts):
        return 0, 0.0
    total, squares = np.cumsum(values), np.cumsum(values * values)
    first, second = total[starts - 1] / starts, (total[-1] - total[starts - 1]) / (count - starts)
    first_var = squares[starts - 1] / starts - first**2
    second_var = (squares[-1] - squares[starts - 1]) / (count - starts) - second**2
    error = np.sqrt(np.maximum(first_var / starts + second_var / (count - starts), 1e-12))
    # The likelihood of two levels finds the place; t says how sure it is.
    between = starts * (count - starts) / count * (second - first) ** 2
    best = int(np.argmax(np.where(second > first, between, -1.0)))
    return int(starts[best]), float(((second - first) / error)[best])


def constant_bias(columns: PairColumns, subject: str = "") -> Finding | None:
    """Whether all tokens, certain and unlikely ones alike, are shifted by one constant."""
    gap = columns.gap
    middle = float(np.median(gap))
    spread = 1.4826 * float(np.median(np.abs(gap - middle)))
    error = 1.2533 * spread / np.sqrt(len(gap))
    if abs(middle) < max(RESOLUTION, 5 * error, 0.3 * spread):
        return None
    for part in (columns.reference > _CERTAIN, columns.reference < _UNLIKELY):
        if part.sum() >= 10:
            own = float(np.median(gap[part]))
            own_error = 1.2533 * 1.4826 * float(np.median(np.abs(gap[part] - own))) / np.sqrt(part.sum())
            # A part that is too noisy to show the shift is no witness of it: low precision shifts certain tokens alone.
            if abs(own - middle) > max(0.2 * abs(middle), 4 * own_error) or abs(own) < 5 * own_error:
                return None
    evidence = (
        (
            f"the median gap is {format_number(middle)} +- {format_number(error)} nats at a spread of {format_number(spread)}, "
            "the same for certain and for unlikely tokens"
        ),
        f"{100 * float((columns.measured > 0).mean()):.1f} % of the reported log-probabilities are above 0",
    )
    return finding_of("constant_bias", format_number(-middle), evidence, subject)


def kept_mass(columns: PairColumns, floor: float, subject: str = "") -> Finding | None:
    """Whether the measured value is never below the reference, by at most the log of a nucleus' mass."""
    gap = columns.gap
    tolerance = 3 * floor + RESOLUTION
    lost = float(np.quantile(gap, 0.01))
    if gap.mean() > -max(2 * floor, RESOLUTION) or lost < np.log(0.2):
        return None
    if float((gap > tolerance).mean()) > 0.01 or float((gap < -tolerance).mean()) < 0.1:
        return None
    sole = columns.reference > np.log1p(-0.02)
    if sole.sum() >= 10 and float(np.median(np.abs(columns.measured[sole]))) > 0.005 + floor:
        return None
    mass = float(np.exp(lost))
    evidence = (
        (
            f"no token is reported below the trainer's value, {100 * float((gap < -tolerance).mean()):.0f} % are above it, by at "
            f"most {format_number(-lost)} nats"
        ),
    )
    return finding_of("top_p_renormalised", f" (the nucleus keeps about {mass:.2f})", evidence, subject)


def log_prob_noise(columns: PairColumns, subject: str = "") -> Finding | None:
    """Whether certain tokens are as noisy as unlikely ones."""
    gap = columns.gap
    certain, unlikely = gap[columns.reference > _CERTAIN], gap[columns.reference < _UNLIKELY]
    if min(len(certain), len(unlikely)) < 20:
        return None
    # Medians: a few heavy tails among unlikely tokens are what real numerics have.
    sd, other = (1.4826 * float(np.median(np.abs(part))) for part in (certain, unlikely))
    if sd < 3 * RESOLUTION or sd < 0.5 * other:
        return None
    evidence = (
        (
            f"typical |gap| is {format_number(sd)} nats for tokens of probability above 0.99 and {format_number(other)} below "
            f"0.5, in {len(certain)} and {len(unlikely)} tokens"
        ),
    )
    return finding_of("noise_on_log_probs", format_number(sd), evidence, subject)
