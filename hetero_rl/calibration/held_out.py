"""Does the predicted length hold for sequences that it was not fitted to?

The completions are dealt into two halves. From the beginnings of one half (the first half of the tokens) the law is fitted
and the length predicted at which raw importance weights cross a floor; the other half shows, over all its tokens, where they
do. Then the halves change places. Floors above the run's own are crossed sooner, so short completions tell something too.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from hetero_rl.calibration.columns import PairColumns
from hetero_rl.calibration.law import fit_law, measured_crossing
from hetero_rl.calibration.usable_length import usable_length

__all__ = ["FLOORS", "HeldOut", "held_out"]

FLOORS = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Effective shares whose crossing is predicted and measured."""

_LEAST_SEQUENCES = 16
"""In each half: the measured share of fewer is mostly chance."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One floor: predicted from one half of the sequences, measured in the other. Mean of both ways round."""

    floor: float
    sequences: int
    """In both halves together."""
    fitted_tokens: int
    """How many tokens of each sequence the prediction saw."""
    predicted: float
    """Tokens: where the law says that the share of raw weights crosses the floor."""
    measured: float
    """Tokens: where it did."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def held_out(columns: PairColumns, floors: Sequence[float] = FLOORS) -> tuple[HeldOut, ...]:
    """Predictions held against other sequences, for each floor that both halves cross within what was sampled.

    Args:
        columns: Completions that the measured side sampled; each begins with its first sampled token.
        floors: Effective shares, 0 to 1.
    """
    usable = columns.usable
    halves = [usable.select(usable.sequence_ids % 2 == parity) for parity in (0, 1)]
    if min(len(half.lengths) for half in halves) < _LEAST_SEQUENCES:
        return ()
    fitted = max(1, int(np.median(usable.lengths)) // 2)
    laws = [fit_law(half, longest=fitted, resamples=20) for half in halves]
    found = []
    for floor in floors:
        predicted = [usable_length(law, "seq_is", 1, floor).tokens for law in laws if law is not None]
        measured = [measured_crossing(half, floor) for half in halves]
        crossed = [length for length in measured if length is not None]
        if len(crossed) == len(predicted) == len(halves):
            found.append(
                HeldOut(
                    floor=floor,
                    sequences=len(usable.lengths),
                    fitted_tokens=fitted,
                    predicted=float(np.mean(predicted)),
                    measured=float(np.mean(crossed)),
                )
            )
    return tuple(found)
