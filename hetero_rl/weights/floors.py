"""The fewest bytes that a delta could take, as far as two simple models of it go. Needs numpy.

Floor A knows how many of n elements change and how their steps are distributed: n H2(k/n) + k H(step) bits. Floor B knows the old
exponent of each element, as both ends of a delta do: the sum of the same over the exponents e, n_e H2(k_e/n_e) + k_e H(step | e).
A step is a signed number of representable values. Steps beyond 32 are taken together by their octave and counted as uniform
within it, and n_e comes from every sixteenth element, so that the tally costs a fraction of the coding.
"""

import numpy as np
from numpy.typing import NDArray

from hetero_rl.weights.delta import Changes
from hetero_rl.weights.learned import Bits, layout_of
from hetero_rl.wire.messages import DataType

__all__ = ["FloorTally"]

_SAMPLED = 16
_PIECE = 2**20
_EXACT = 32
"""Steps up to this are told apart."""
_KINDS = 256
"""Room for a step's kind: the exact ones of both signs, and 32 octaves of each."""
_FIRST_OCTAVE = 2 * _EXACT + 1


class FloorTally:
    """Counts what changes in the tensors of one version."""

    def __init__(self) -> None:
        self._elements: dict[DataType, NDArray[np.float64]] = {}
        self._kinds: dict[DataType, NDArray[np.int64]] = {}
        self._extra_bits = 0

    def add(self, data_type: DataType, old: Bits, changes: Changes) -> None:
        """Counts a tensor; one of a type that the codec sends whole does not count."""
        layout = layout_of(data_type)
        if layout is None or not old.size:
            return
        contexts = 1 << layout.exponent_bits
        elements = self._elements.setdefault(data_type, np.zeros(contexts))
        kinds = self._kinds.setdefault(data_type, np.zeros(contexts * _KINDS, np.int64))
        sample = (old[::_SAMPLED] >> layout.exponent_shift) & (contexts - 1)
        elements += np.bincount(sample, minlength=contexts) * (old.size / sample.size)
        for start in range(0, changes.positions.size, _PIECE):
            before = old[changes.positions[start : start + _PIECE]]
            exponents = ((before >> layout.exponent_shift) & (contexts - 1)).astype(np.int64)
            steps = _ordered(changes.bits[start : start + _PIECE], layout.sign) - _ordered(
                before, layout.sign
            )
            kinds += np.bincount(exponents * _KINDS + self._kind(steps), minlength=kinds.size)

    def _kind(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = np.abs(steps)
        octaves = np.frexp(sizes.astype(np.float64))[1].astype(np.int64)  # the length in bits
        far = sizes > _EXACT
        self._extra_bits += int((octaves[far] - 1).sum())
        return np.where(far, _FIRST_OCTAVE + 2 * octaves + (steps < 0), steps + _EXACT)

    def bytes_given_nothing(self) -> float:
        """Floor A, over all tensors."""
        elements = sum(float(counts.sum()) for counts in self._elements.values())
        kinds = np.zeros(_KINDS)
        for counts in self._kinds.values():
            kinds += counts.reshape(-1, _KINDS).sum(0)
        return (
            _position_bits(np.array([elements]), kinds.sum(keepdims=True))
            + _step_bits(kinds[None])
            + self._extra_bits
        ) / 8

    def bytes_given_exponents(self) -> float:
        """Floor B, over all tensors; tensors of one type share their statistics."""
        bits = 0.0
        for data_type, counts in self._kinds.items():
            kinds = counts.reshape(-1, _KINDS).astype(np.float64)
            bits += _position_bits(self._elements[data_type], kinds.sum(1)) + _step_bits(kinds)
        return (bits + self._extra_bits) / 8


def _ordered(bits: Bits, sign: int) -> NDArray[np.int64]:
    wide = bits.astype(np.int64)
    return np.where(wide & sign, 2 * sign - 1 - wide, wide + sign)


def _position_bits(elements: NDArray[np.float64], changed: NDArray[np.float64]) -> float:
    """Bits of positions, n H2(k/n), summed; a sampled n may come out below k."""
    elements = np.maximum(elements, changed)
    shares = changed / np.maximum(elements, 1)
    return float((elements * (_bits(shares) + _bits(1 - shares))).sum())


def _step_bits(kinds: NDArray[np.float64]) -> float:
    """Bits of steps, k H(kind), summed over the rows."""
    totals = kinds.sum(1, keepdims=True)
    return float((totals * _bits(kinds / np.maximum(totals, 1))).sum())


def _bits(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    return -shares * np.log2(np.where(shares > 0, shares, 1))
