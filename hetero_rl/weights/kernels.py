"""The compiled loops of the delta codec: a range coder whose gaps are measured in hazard. Needs numba.

    old weights ──exponent──► hazard of each element ──sum since the last change──► h
    change at the next element:   interval [exp(-(h + w)), exp(-h))   of the coder's range
    no change so far:             interval [0, exp(-h))
    then the signed step, bit by bit, under odds that adapt for each exponent

An element of exponent e changes with probability p_e; its hazard is w_e = -ln(1 - p_e). If changes are independent, the
hazard passed between two of them is exponential, so one pass in natural order codes every position at the entropy given
the old exponent, without sorting by exponent. Probabilities come from what both sides have already seen, piece by piece.

Everything is int64 arithmetic, identical on every processor; indices are cast to uint64 to spare numba's test for
negative ones. Floats serve only to find leading bits, for where an exact search starts. All compiled functions are in this
file: numba's cache notices a change of the file only. A damaged stream decodes to wrong weights, never out of bounds.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from hetero_rl.weights.survival import (
    FINE_BITS,
    HAZARD_BITS,
    HAZARD_LIMIT,
    HAZARD_TOP,
    LOG_BITS,
    PROBABILITY_BITS,
    tables,
)

__all__ = ["EVEN_ODDS", "STEP_ODDS", "decode", "encode", "find_changes"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


# No kernel allocates: without numba's own run time (_nrt) the loops are free of reference counts, and twice as fast.
def _kernel(function: _Function) -> _Function:
    compiled: _Function = numba.njit(cache=True, nogil=True, _nrt=False, error_model="numpy")(function)
    return compiled


def _inlined(function: _Function) -> _Function:
    """Part of a kernel: a call would pass each array as seven words."""
    compiled: _Function = numba.njit(nogil=True, _nrt=False, error_model="numpy", forceinline=True)(function)
    return compiled


U = np.uint64
_COARSE, _FINE, _LOGS = tables()
_SURVIVAL_COARSE = _COARSE.astype(np.int32)
_SURVIVAL_FINE = _FINE.astype(np.int32)
_LN2 = int(_LOGS[-1])
# The logarithm of a float's ten leading mantissa bits, and of 2, as hazards.
_NATS = (_LOGS >> (30 - HAZARD_BITS)).astype(np.int32)
_OCTAVE = _LN2 >> (30 - HAZARD_BITS)
_FINE_MASK = (1 << FINE_BITS) - 1
_LONGEST_HAZARD = HAZARD_TOP - HAZARD_LIMIT
_LOG_SHIFT = 31 - LOG_BITS

# The coder keeps 56 bits and moves two bytes at a time: at least 40 bits before a gap, 24 before a bit.
_TOP = 1 << 56
_WIDE = 1 << 40
_NARROW = 1 << 24
_REST = _WIDE - 1

# Odds of a bit: probability of 0 in the upper bits, number of visits in the low byte.
EVEN_ODDS = 32768 << 8
_MOST_VISITS = 250
_RATES = np.array([int(65536 / (visits + 1.6)) for visits in range(256)], np.int32)

# Bits of a step of one exponent, after a sign at even odds: "more than one" (the second), a tree of 5 bits for the
# length, a tree of 3 for its top bits.
STEP_ODDS = 320
_LENGTH_TREE = 2
_TOP_TREES = 34

_SMALLEST_PIECE = 128
_LARGEST_PIECE = 65536
_SAMPLED = 4096


@_inlined
def _survival(hazard):
    coarse = np.int64(_SURVIVAL_COARSE[U(hazard >> FINE_BITS)])
    return (coarse * np.int64(_SURVIVAL_FINE[U(hazard & _FINE_MASK)])) >> PROBABILITY_BITS


@_inlined
def _carry(out, position):
    position -= 1
    while out[position] == 255:
        out[position] = 0
        position -= 1
    out[position] += 1


@_inlined
def _emit(low, width, out, position):
    if low >= _TOP:
        low -= _TOP
        _carry(out, position)
    out[U(position)] = (low >> 48) & 255
    out[U(position + 1)] = (low >> 40) & 255
    return (low & _REST) << 16, width << 16, position + 2


@_inlined
def _fetch(code, width, data, position):
    first, second = 0, 0
    if position < data.size:
        first = np.int64(data[U(position)])
    if position + 1 < data.size:
        second = np.int64(data[U(position + 1)])
    return (code << 16) | (first << 8) | second, width << 16, position + 2


@_inlined
def _learn(odds, index, bit):
    packed = np.int64(odds[U(index)])
    visits, zero = packed & 255, packed >> 8
    zero += ((((1 - bit) << 16) - zero) * np.int64(_RATES[U(visits)])) >> 16
    zero = min(max(zero, 64), 65536 - 64)
    odds[U(index)] = (zero << 8) | min(visits + 1, _MOST_VISITS)


@_inlined
def _put_bit(low, width, out, position, odds, index, bit):
    split = (width >> 16) * (np.int64(odds[U(index)]) >> 8)
    low += split & -bit
    width = split + ((width - 2 * split) & -bit)
    _learn(odds, index, bit)
    while width < _NARROW:
        low, width, position = _emit(low, width, out, position)
    return low, width, position


@_inlined
def _take_bit(code, width, data, position, odds, index):
    split = (width >> 16) * (np.int64(odds[U(index)]) >> 8)
    bit = np.int64(code >= split)
    code -= split & -bit
    width = split + ((width - 2 * split) & -bit)
    _learn(odds, index, bit)
    while width < _NARROW:
        code, width, position = _fetch(code, width, data, position)
    return code, width, position, bit


@_inlined
def _put_step(low, width, out, position, step, base, odds):
    width >>= 1
    low += width & -np.int64(step < 0)
    more = abs(step) - 1
    low, width, position = _put_bit(low, width, out, position, odds, base + 1, np.int64(more > 0))
    if more > 0:
        length = 0
        while (more >> length) > 0:
            length += 1
        node = 1
        for shift in range(4, -1, -1):
            bit = ((length - 1) >> shift) & 1
            low, width, position = _put_bit(low, width, out, position, odds, base + _LENGTH_TREE + node, bit)
            node = 2 * node + bit
        rest, node, tree = length - 1, 1, base + _TOP_TREES + 8 * (length - 1)
        while rest > 0 and node < 8:
            rest -= 1
            bit = (more >> rest) & 1
            low, width, position = _put_bit(low, width, out, position, odds, tree + node, bit)
            node = 2 * node + bit
        while rest > 0:
            taken = min(rest, 8)
            rest -= taken
            width >>= taken
            low += width * ((more >> rest) & ((1 << taken) - 1))
            while width < _NARROW:
                low, width, position = _emit(low, width, out, position)
    return low, width, position


@_inlined
def _take_step(code, width, data, position, base, odds):
    width >>= 1
    negative = np.int64(code >= width)
    code -= width & -negative
    code, width, position, larger = _take_bit(code, width, data, position, odds, base + 1)
    more = 0
    if larger > 0:
        node = 1
        for _ in range(5):
            code, width, position, bit = _take_bit(
                code, width, data, position, odds, base + _LENGTH_TREE + node
            )
            node = 2 * node + bit
        length = node - 31
        more, rest, node, tree = 1, length - 1, 1, base + _TOP_TREES + 8 * (length - 1)
        while rest > 0 and node < 8:
            rest -= 1
            code, width, position, bit = _take_bit(code, width, data, position, odds, tree + node)
            node = 2 * node + bit
            more = 2 * more + bit
        while rest > 0:
            taken = min(rest, 8)
            rest -= taken
            width >>= taken
            value = min(code // width, (1 << taken) - 1)
            code -= width * value
            more = (more << taken) | value
            while width < _NARROW:
                code, width, position = _fetch(code, width, data, position)
    return code, width, position, (more + 1) * (1 - 2 * negative)


@_inlined
def _nats(numerator, denominator):
    """ln(numerator / denominator) as a hazard."""
    while numerator >= (1 << 31):
        numerator >>= 1
        denominator >>= 1
    ratio = (numerator << 31) // max(denominator, 1)
    octave = 0
    while (ratio >> octave) >= (1 << 32):
        octave += 1
    mantissa = (ratio >> octave) - (1 << 31)
    index, rest = mantissa >> _LOG_SHIFT, mantissa & ((1 << _LOG_SHIFT) - 1)
    slope = _LOGS[U(index + 1)] - _LOGS[U(index)]
    nats = _LOGS[U(index)] + ((slope * rest) >> _LOG_SHIFT) + octave * _LN2
    return (nats + (1 << (29 - HAZARD_BITS))) >> (30 - HAZARD_BITS)


@_inlined
def _piece_end(old, start, shift, pieces, counts):
    """Where the piece from `start` ends; counts a sample of its exponents before any element is changed."""
    stop = min(start + min(_SMALLEST_PIECE << min(pieces[0], 20), _LARGEST_PIECE), old.size)
    pieces[0] += 1
    stride = max(1, (stop - start) // _SAMPLED)
    for element in range(start, stop, stride):
        counts[(np.int64(old[U(element)]) >> shift) & (counts.size - 1)] += stride
    return stop


@_inlined
def _relearn(counts, hits, seen, changed, hazards):
    """New hazards from a piece; counts are in 256ths and forget a sixteenth per piece."""
    contexts = counts.size
    for context in range(contexts):
        if counts[context] == 0 and hits[context] == 0:
            continue
        changed[context] += (hits[context] << 8) - (changed[context] >> 4)
        seen[context] = max(seen[context] + (counts[context] << 8) - (seen[context] >> 4), changed[context])
        total = seen[context] + 256
        hazard = min(max(_nats(total, total - changed[context] - 100), 1), _LONGEST_HAZARD)
        hazards[context] = hazard
        hazards[context + contexts] = hazard
        counts[context], hits[context] = 0, 0


@_inlined
def _hazard(old, element, shift, hazards):
    return np.int64(hazards[U(old[U(element)]) >> U(shift)])


@_inlined
def _hazard_of_8(old, element, shift, hazards):
    i, s = U(element), U(shift)
    first = np.int64(hazards[U(old[i]) >> s]) + np.int64(hazards[U(old[i + U(1)]) >> s])
    second = np.int64(hazards[U(old[i + U(2)]) >> s]) + np.int64(hazards[U(old[i + U(3)]) >> s])
    third = np.int64(hazards[U(old[i + U(4)]) >> s]) + np.int64(hazards[U(old[i + U(5)]) >> s])
    fourth = np.int64(hazards[U(old[i + U(6)]) >> s]) + np.int64(hazards[U(old[i + U(7)]) >> s])
    return (first + second) + (third + fourth)


@_inlined
def _order(bits, sign):
    """Bits of a float as an integer that rises with its value; `_unorder` is the way back."""
    return bits ^ (sign | ((sign - 1) & -np.int64((bits & sign) != 0)))


@_inlined
def _unorder(order, sign):
    return order ^ (sign | ((sign - 1) & -np.int64((order & sign) == 0)))


@_inlined
def _pass_unchanged(old, element, stop, hazard, limit, shift, hazards):
    """Walks to `stop`, or until the hazard would exceed `limit`."""
    while element + 8 <= stop:
        passed = _hazard_of_8(old, element, shift, hazards)
        if hazard + passed > limit:
            break
        hazard += passed
        element += 8
    while element < stop:
        passed = hazard + _hazard(old, element, shift, hazards)
        if passed > limit:
            break
        hazard = passed
        element += 1
    return element, hazard


@_inlined
def _put_gap(low, width, out, position, old, element, stop, shift, hazards):
    """Codes that elements up to `stop` do not change, but for what is left in the hazard that is given back."""
    hazard = 0
    while True:
        element, hazard = _pass_unchanged(old, element, stop, hazard, HAZARD_LIMIT - 1, shift, hazards)
        if element == stop:
            return low, width, position, hazard
        hazard += _hazard(old, element, shift, hazards)
        element += 1
        width = (width >> PROBABILITY_BITS) * _survival(hazard)
        hazard = 0
        while width < _WIDE:
            low, width, position = _emit(low, width, out, position)


@_inlined
def _put_change(low, width, out, position, before, after, hazard, shift, sign, hazards, hits, odds):
    context = before >> shift
    unit = width >> PROBABILITY_BITS
    below = _survival(hazard + np.int64(hazards[U(context)]))
    low += unit * below
    width = unit * (_survival(hazard) - below)
    while width < _NARROW:
        low, width, position = _emit(low, width, out, position)
    context &= hits.size - 1
    hits[U(context)] += 1
    step = _order(after, sign) - _order(before, sign)
    low, width, position = _put_step(low, width, out, position, step, context * STEP_ODDS, odds)
    while width < _WIDE:
        low, width, position = _emit(low, width, out, position)
    return low, width, position


@_inlined
def _flush(low, out, position):
    """Ends a stream with the shortest bytes inside its interval; zeros at the end need not be written."""
    low += _WIDE - 1
    if low >= _TOP:
        low -= _TOP
        _carry(out, position)
    out[position], out[position + 1] = low >> 48, (low >> 40) & 255
    position += 2
    while position > 0 and out[position - 1] == 0:
        position -= 1
    return position


@_kernel
def encode(old, index, new, out, shift, sign, hazards, seen, changed, odds, pieces, counts, hits):
    """Codes that `old[index]` become `new`; returns the number of bytes, or -1 when they are more than half of `out`.

    The elements after the last change take at most 8.7 bits each, so that `out` of twice the bytes of `old` and 256
    more is never overrun.
    """
    low, width, position = 0, _TOP - 1, 0
    start, change = 0, 0
    while start < old.size:
        stop = _piece_end(old, start, shift, pieces, counts)
        while True:
            at_change = change < index.size and index[U(change)] < stop
            reached = index[U(change)] if at_change else stop
            low, width, position, hazard = _put_gap(
                low, width, out, position, old, start, reached, shift, hazards
            )
            if not at_change:
                break
            low, width, position = _put_change(
                low, width, out, position, np.int64(old[U(reached)]), np.int64(new[U(change)]),
                hazard, shift, sign, hazards, hits, odds,
            )  # fmt: skip
            start, change = reached + 1, change + 1
            if 2 * position > out.size:
                return -1
        if hazard > 0:
            width = (width >> PROBABILITY_BITS) * _survival(hazard)
            while width < _WIDE:
                low, width, position = _emit(low, width, out, position)
        _relearn(counts, hits, seen, changed, hazards)
        start = stop
    return _flush(low, out, position)


@_inlined
def _find_change(old, element, stop, code, unit, shift, hazards):
    """Where the next change is: its element, the hazard before it and the survival after it.

    Ends at `stop`, or where the hazard reaches its limit, with a survival of -1. The leading bits of the coder's numbers
    give a hazard that is surely passed; from there on, the test is exact.
    """
    whole, part = np.float64(unit << PROBABILITY_BITS).view(np.int64), np.float64(code + 1).view(np.int64)
    hint = ((whole >> 52) - (part >> 52)) * _OCTAVE
    hint += np.int64(_NATS[U((whole >> 42) & 1023)]) - np.int64(_NATS[U(((part >> 42) & 1023) + 1)])
    limit = min(hint - 64, HAZARD_LIMIT - 1)
    element, hazard = _pass_unchanged(old, element, stop, 0, limit, shift, hazards)
    while element < stop and hazard < HAZARD_LIMIT:
        passed = hazard + _hazard(old, element, shift, hazards)
        below = _survival(passed)
        if code >= unit * below:
            return element, hazard, below
        hazard = passed
        element += 1
    return element, hazard, -1


@_kernel
def decode(old, data, shift, sign, hazards, seen, changed, odds, pieces, counts, hits):
    """Applies the coded changes of one tensor in place."""
    code, width, position = 0, _TOP - 1, 7
    for byte in range(7):
        code = (code << 8) | (np.int64(data[byte]) if byte < data.size else 0)
    element = 0
    while element < old.size:
        stop = _piece_end(old, element, shift, pieces, counts)
        while element < stop:
            unit = width >> PROBABILITY_BITS
            element, hazard, below = _find_change(old, element, stop, code, unit, shift, hazards)
            if below < 0:
                width = unit * _survival(hazard)
            else:
                code -= unit * below
                width = unit * (_survival(hazard) - below)
                while width < _NARROW:
                    code, width, position = _fetch(code, width, data, position)
                before = np.int64(old[U(element)])
                context = (before >> shift) & (hits.size - 1)
                hits[U(context)] += 1
                code, width, position, step = _take_step(
                    code, width, data, position, context * STEP_ODDS, odds
                )
                old[U(element)] = _unorder((_order(before, sign) + step) & (2 * sign - 1), sign)
                element += 1
            if (
                position + 1 < data.size
            ):  # mostly one step or none, which nothing can foretell: no branch on it
                wanted = np.int64(width < _WIDE)
                word = (np.int64(data[U(position)]) << 8) | np.int64(data[U(position + 1)])
                code = (code << (wanted << 4)) | (word & -wanted)
                width <<= wanted << 4
                position += 2 * wanted
            while width < _WIDE:
                code, width, position = _fetch(code, width, data, position)
        _relearn(counts, hits, seen, changed, hazards)


@_kernel
def find_changes(old, new, index):
    """Writes the positions at which two arrays differ and returns their number; `index` has room for 16 more."""
    found, element, size = 0, 0, old.size
    while element + 16 <= size:
        i = U(element)
        different = old[i] ^ new[i]
        for ahead in range(1, 16):
            different |= old[i + U(ahead)] ^ new[i + U(ahead)]
        if different:
            for ahead in range(16):
                index[U(found)] = element + ahead
                found += np.int64(old[i + U(ahead)] != new[i + U(ahead)])
        element += 16
    while element < size:
        index[U(found)] = element
        found += np.int64(old[U(element)] != new[U(element)])
        element += 1
    return found
