"""Whether something moved between two calibrations: an upgrade of a driver, a runtime, an engine.

Two questions, in this order. Were the fixed texts scored to the same bits? Then nothing moved. If not, are the gaps to the
trainer of another size? A permutation test over whole sequences answers: sequences are dealt anew between the two files, and the
share of deals with a difference at least as large is the p-value. Holm's correction covers all that was asked at once.
"""

import base64
import binascii
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero_rl.calibration.columns import Floats
from hetero_rl.errors import DamagedError

__all__ = ["Comparison", "Moved", "compare_calibrations"]

_PERMUTATIONS = 2000
_SIGNIFICANT = 0.01
_RELATIVE = 0.05  # of the larger one: less is not worth a name even when it is certain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One number of one pair, before and after."""

    pair: str
    number: str
    before: float
    after: float
    p_value: float
    """After Holm's correction."""
    moved: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two calibrations of one model say of each other."""

    changed_numerics: tuple[str, ...]
    """Sentences on what the numerics records differ in."""
    fixed: tuple[tuple[str, int, float, float], ...]
    """For each pair scored on the same tokens and weights: name, tokens, mean and largest |difference| between the files."""
    numbers: tuple[Moved, ...]
    only_in_one: tuple[str, ...]
    """Pairs that one of the files lacks."""

    @property
    def moved(self) -> bool:
        """Whether anything moved by more than chance."""
        return any(one.moved for one in self.numbers)

    @property
    def identical(self) -> bool:
        """Whether every pair was scored on the same tokens, to the same bits."""
        return bool(self.fixed) and all(largest == 0 for *_, largest in self.fixed) and not self.only_in_one

    @property
    def first_line(self) -> str:
        """The answer in one sentence."""
        if self.identical:
            return "nothing moved: the same texts have the same log-probabilities, bit for bit"
        if self.moved:
            worst = min((one for one in self.numbers if one.moved), key=lambda one: one.p_value)
            return (
                f"moved: {worst.number} of {worst.pair} went from {worst.before:.3g} to {worst.after:.3g} "
                f"(p = {worst.p_value:.2g})"
            )
        if not self.numbers:
            return "nothing to compare: no pair is in both files"
        return "no change beyond chance: bits may differ, sizes of gaps do not"


def compare_calibrations(before: Mapping[str, Any], after: Mapping[str, Any], *, seed: int = 0) -> Comparison:
    """Compares two files that `read_calibration` read; pairs are matched by name.

    Raises:
        DamagedError: A file lacks what a calibration has.
    """
    try:
        return _compare(before, after, seed)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, binascii.Error) as error:
        raise DamagedError(f"a file is no whole calibration: {error!r}") from error


def _compare(before: Mapping[str, Any], after: Mapping[str, Any], seed: int) -> Comparison:
    old, new = _pairs(before), _pairs(after)
    shared = [name for name in old if name in new]
    generator = np.random.default_rng(seed)
    raw = [
        (name, *found)
        for name in shared
        for found in _numbers(old[name]["sequence_sums"], new[name]["sequence_sums"], generator)
    ]
    corrected = _holm([p for *_, p in raw])
    return Comparison(
        changed_numerics=tuple(_changed_numerics(before["numerics"], after["numerics"])),
        fixed=tuple(found for name in shared if (found := _fixed(name, old[name], new[name])) is not None),
        numbers=tuple(
            Moved(
                pair=name,
                number=number,
                before=first,
                after=second,
                p_value=p,
                moved=p < _SIGNIFICANT and abs(first - second) > _RELATIVE * max(abs(first), abs(second)),
            )
            for (name, number, first, second, _), p in zip(raw, corrected, strict=True)
        ),
        only_in_one=tuple(sorted(set(old) ^ set(new))),
    )


def _pairs(record: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{pair['second']} against {pair['first']}": pair for pair in record["pairs"]}


def _numbers(
    old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], generator: np.random.Generator
) -> list[tuple[str, float, float, float]]:
    """(name, before, after, p) of the numbers that are compared: ratios of sums over sequences."""
    first, second = np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)
    both = np.concatenate([first, second])
    order = np.argsort(generator.random((_PERMUTATIONS, len(both))), axis=1)
    found = []
    for name, column in (("mean gap", 1), ("mean |gap|", 2), ("mean squared gap", 3)):
        before, after = _ratio(first, column), _ratio(second, column)
        dealt = both[order]
        left = dealt[:, : len(first), column].sum(1) / dealt[:, : len(first), 0].sum(1)
        right = dealt[:, len(first) :, column].sum(1) / dealt[:, len(first) :, 0].sum(1)
        # Sums in another order differ in the last bits.
        least = abs(after - before) * (1 - 1e-9)
        p = (1 + int((np.abs(left - right) >= least).sum())) / (1 + _PERMUTATIONS)
        found.append((name, before, after, p))
    return found


def _ratio(sums: Floats, column: int) -> float:
    return float(sums[:, column].sum() / sums[:, 0].sum())


def _holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values, in the order given."""
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        corrected[place] = largest
    return corrected


def _fixed(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, int, float, float] | None:
    first, second = old.get("fixed"), new.get("fixed")
    if not first or not second or first["tokens_digest"] != second["tokens_digest"]:
        return None
    a, b = (
        np.frombuffer(base64.b64decode(one["log_probs"], validate=True), dtype="<f4").astype(np.float64)
        for one in (first, second)
    )
    difference = np.abs(a - b)
    return name, len(difference), float(difference.mean()), float(difference.max())


def _changed_numerics(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    sentences = []
    for name in old:
        for key in sorted(set(old[name]) | set(new.get(name, old[name]))):
            before, after = old[name].get(key), new.get(name, old[name]).get(key)
            if before != after:
                sentences.append(f"{name}: {key} was {before!r}, now {after!r}")
    return sentences
